"""Several stores as one: event ``id % N`` is the number of its shard."""
