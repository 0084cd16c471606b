"""The lifecycle of an event as pure functions: no I/O, no clock, no randomness.

``transition`` decides what every command does. The memory store calls it directly. The SQL and Lua of the other stores
are translations of it: tests run the same random commands on both and compare. The explorer in the tests visits every
reachable state.
"""
