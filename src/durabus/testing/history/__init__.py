"""What a fleet asked of its store and was answered, what its handlers did, and whether all of it can be true.

Lines of JSON, written by any number of processes. The checker knows nothing of where they come from: a simulation, or
real processes that were killed.
"""
