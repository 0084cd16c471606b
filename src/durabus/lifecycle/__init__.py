"""The life of an event as pure functions: no I/O, no clock, no randomness.

``transition`` is the law. The memory store is it, the SQL statements are translations of it and are tested against
it on the same random command sequences, and the explorer in the tests walks its whole reachable state space.
"""
