"""Tables of one PostgreSQL schema, shared by any number of hosts."""
