"""A fleet in one thread and in virtual time: hosts that crash and freeze, a network that loses and repeats, one seed.

The worker, the dispatcher, the settlement, the bus and the kernel that run here are those of production. Replaced are
the event loop, the clocks, the sources of randomness, and the one thread on the path, the heartbeat's.
"""
