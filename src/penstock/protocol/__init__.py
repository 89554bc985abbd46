"""The checkpoint protocol, pure: state machines without I/O, clock, randomness or logging.

Each machine is a `step(state, event) -> (state, actions)`; the runtime executes the actions in order.
Records never pass through a step: the data path only asks whether a channel is blocked.
"""
