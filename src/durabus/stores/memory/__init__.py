"""The memory store: the kernel behind one lock. It is the model for every other store."""
