-- Registered buses by name. Walks the primary key of event_buses.
SELECT bus, date_part('epoch', created_at), date_part('epoch', last_seen_at), date_part('epoch', stopped_at)
FROM {schema}.event_buses WHERE bus > $1 ORDER BY bus LIMIT $2
