"""The simulator: production workers, coordinator and supervisor in one thread, from one seed.

Network, clock, disk and the gang are fakes; everything else is the code that runs on Spark. Separate checkers
judge what came out. `make simulate SEEDS=1000`, and for one seed with its story `make simulate SEED=17`.
"""
