-- The secrets of the claims on given events, for comparison with what a caller holds; the last column says that
-- completing the event touches nothing but its own row and the log.
-- Relies on the primary key of events.
SELECT id, token, fence, lock_key, lock_key IS NULL AND has_results = 0 FROM events
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'PROCESSING'
