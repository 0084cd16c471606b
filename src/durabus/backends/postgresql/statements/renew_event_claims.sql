-- Extends leases of claims that are current. Relies on events_id; `|| ''` as in complete_events.
UPDATE {schema}.events AS event SET lease_expires_at = to_timestamp($4)
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS given (id, token, fence)
WHERE event.id = given.id AND event.token || '' = given.token AND event.fence = given.fence
    AND event.status || '' = 'PROCESSING'
RETURNING event.id, event.lock_key, event.token, event.fence
