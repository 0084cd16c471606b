"""Redis and Valkey: a library of functions on the server, and thin callers of it."""
