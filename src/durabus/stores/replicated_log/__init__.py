"""The replicated log: a store on one totally ordered log of a broker. NATS and Kafka share this package.

A node appends commands to the log, reads the log back, and applies every record in log order to a memory store, its
replica. Every node applies the same records at the same times of the log, so all replicas decide alike: the first valid
claim in log order wins everywhere. A call returns when the node has read its own record back. Nodes do not communicate
in any other way.
"""
