-- What migrations note: the steps that were applied, and what they made.
CREATE TABLE IF NOT EXISTS durabus_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS durabus_objects (
    kind text NOT NULL, name text NOT NULL, definition text NOT NULL, PRIMARY KEY (kind, name)
)
