"""durabus and its peers on one server, in one run. `make bench-peers`, or ``python -m benchmarks.peers --help``."""
