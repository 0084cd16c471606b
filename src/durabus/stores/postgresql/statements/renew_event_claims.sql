-- Extends leases of claims that are current. Relies on events_id. `coalesce` and `IS TRUE` keep the planner from
-- comparing every claim there is with every one that is given: see complete_events.
UPDATE {schema}.events AS event SET lease_expires_at = to_timestamp($4)
WHERE event.id = ANY ($1::bigint[]) AND coalesce(event.status, '') = 'PROCESSING'
    AND ((event.id, event.token, event.fence) IN (SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[]))) IS TRUE
RETURNING event.id, event.lock_key, event.token, event.fence
