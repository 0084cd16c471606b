"""The memory store: the lifecycle behind one lock. It is the model for every other store."""
