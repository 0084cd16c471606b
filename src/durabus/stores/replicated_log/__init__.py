"""A store as the fold of a totally ordered log: what NATS and Kafka share.

A node appends commands to the log, reads the log back, and applies every record in its order to a memory store. Each
replica does the same with the same records and the log's own time, so all of them decide alike: the first valid claim
in log order wins everywhere. A call is answered when its own record came back. There is no other communication.
"""
