-- Forgets buses that were stopped long enough ago and have no live events, and their handlers.
-- Walks event_buses_stopped.
WITH gone AS (
    DELETE FROM {schema}.event_buses WHERE bus = ANY (ARRAY(
        SELECT stopped.bus FROM {schema}.event_buses AS stopped
        WHERE stopped_at <= {schema}.the_time($1) - make_interval(secs => $2)
          AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND lane = 1)
          AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND lane = 2)
          AND NOT EXISTS (
              SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND lane = 0 AND status = 'PENDING'
          )
          AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.bus = stopped.bus AND status = 'PROCESSING')
        ORDER BY stopped_at, stopped.bus LIMIT $3 FOR UPDATE SKIP LOCKED
    )) RETURNING bus
), handlers AS (
    DELETE FROM {schema}.event_handlers USING gone WHERE event_handlers.bus = gone.bus
)
SELECT bus FROM gone
