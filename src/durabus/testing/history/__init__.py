"""Histories: the calls of a fleet to its store, the replies, and what the handlers did; and a checker of histories.

A history consists of lines of JSON from any number of processes. The checker does not know whether they come from a
simulation or from real processes that were killed.
"""
