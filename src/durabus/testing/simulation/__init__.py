"""A fleet in one thread and in virtual time. One seed decides which hosts crash or freeze and what the network loses.

The worker, the bus and the lifecycle are those of production. The simulation replaces the event loop, the clocks, the
sources of randomness, and the thread of the heartbeat.
"""
