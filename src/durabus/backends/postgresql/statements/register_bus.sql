-- Makes a bus known, and locks it; a stopped one becomes active again. Answers whether it is new.
INSERT INTO {schema}.event_buses AS known (bus, created_at, last_seen_at, revision)
VALUES ($1, to_timestamp($2), to_timestamp($2), nextval('{schema}.handler_revisions'))
ON CONFLICT (bus) DO UPDATE SET last_seen_at = excluded.last_seen_at, stopped_at = NULL
RETURNING xmax = 0
