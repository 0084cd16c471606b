-- Live events with the secrets of their claims, locked in one order. Relies on events_id.
SELECT {event}, token, lock_key, has_results FROM {schema}.events WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
