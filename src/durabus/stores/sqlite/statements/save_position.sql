-- How far a reader of the log has come.
INSERT INTO positions (name, position, updated_at) VALUES (:name, :position, :now)
ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = excluded.updated_at
