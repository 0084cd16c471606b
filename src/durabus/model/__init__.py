"""Frozen values and the rules that need no I/O."""
