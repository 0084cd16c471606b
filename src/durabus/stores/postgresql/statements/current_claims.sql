-- The secrets of the claims on given events. Relies on events_id.
SELECT id, token, fence FROM {schema}.events
WHERE id = ANY ($1::bigint[]) AND status = 'PROCESSING' AND token IS NOT NULL
