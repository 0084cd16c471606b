"""The PostgreSQL store: one schema, which any number of hosts share. Start with ``layout`` and ``store``."""
