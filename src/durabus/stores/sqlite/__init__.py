"""The SQLite store: one file, which any number of processes on one host share. Start with ``layout`` and ``store``."""
