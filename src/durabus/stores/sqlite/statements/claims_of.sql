-- The secrets of the claims on given events, for comparison with what a caller holds; the last column says that
-- completing the event touches nothing but its own row, the log and its lock.
-- Relies on the primary key of events.
SELECT id, token, fence, lock_key, has_results = 0, bus FROM events
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'PROCESSING'
