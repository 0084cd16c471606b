-- Whether each bus has something to claim now, and in how many seconds it next will: the earliest due time and lease end.
-- Four index probes: events_fresh, events_returned, events_delayed, events_leased; the orders keep the planner there.
SELECT
    coalesce(
        (SELECT true FROM {schema}.events WHERE bus = given.bus AND lane = 1 ORDER BY -priority, id LIMIT 1),
        (SELECT true FROM {schema}.events WHERE bus = given.bus AND lane = 2 ORDER BY -priority, id LIMIT 1),
        false
    ),
    date_part('epoch', least(
        (SELECT due_at FROM {schema}.events
         WHERE bus = given.bus AND lane = 0 AND status = 'PENDING' ORDER BY due_at, id LIMIT 1),
        (SELECT lease_expires_at FROM {schema}.events
         WHERE bus = given.bus AND status = 'PROCESSING' ORDER BY lease_expires_at, id LIMIT 1)
    )) - date_part('epoch', {schema}.the_time($2))
FROM unnest($1::text[]) WITH ORDINALITY AS given (bus, n) ORDER BY given.n
