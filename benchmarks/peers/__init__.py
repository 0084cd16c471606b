"""durabus and its peers on one PostgreSQL, in one run. `make bench-peers`, or ``python -m benchmarks.peers --help``."""
