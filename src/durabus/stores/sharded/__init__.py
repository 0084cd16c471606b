"""The sharded store: several stores as one. ``id % N`` is the number of an event's shard."""
