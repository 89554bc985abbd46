"""The page of a pipeline, its REST and its Prometheus endpoint: a server in a thread of the driver.

Nothing here decides anything about a pipeline, and none of it runs in the driver's mailbox. Views are values, computed
at most twice a second from snapshots that any thread may read, and shared by all clients.
"""
