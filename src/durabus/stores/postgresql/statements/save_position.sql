-- How far a reader of the log has come.
INSERT INTO {schema}.positions (name, position, updated_at) VALUES ($1, $2, to_timestamp($3))
ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = excluded.updated_at
