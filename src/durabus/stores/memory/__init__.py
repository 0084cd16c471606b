"""The kernel behind one lock: the model for every other store."""
