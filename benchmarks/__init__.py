"""Measurements, not tests: ratios against a raw loop or a peer in the same run. ``python -m benchmarks --help``."""
