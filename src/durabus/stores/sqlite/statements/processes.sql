-- Processes: what belongs to a process, by the beginning of its tokens. 'g' comes after every hexadecimal digit.

-- name: processes_with_events
-- Returns the incarnations of processes that hold events. Jumps from one to the next in events_token, so the number of
-- events does not matter.
WITH RECURSIVE found (incarnation) AS (
    SELECT (SELECT substr(min(token), 1, 12) FROM events WHERE token >= '~' AND token < '~g')
    UNION ALL
    SELECT (SELECT substr(min(token), 1, 12) FROM events WHERE token > found.incarnation || 'g' AND token < '~g')
    FROM found WHERE found.incarnation IS NOT NULL
)
SELECT incarnation FROM found WHERE incarnation IS NOT NULL

-- name: processes_with_locks
-- Returns the incarnations of processes that hold locks or handlers. Reads all locks, and event_results_token.
SELECT DISTINCT substr(token, 1, 12) FROM locks WHERE token >= '~' AND token < '~g' AND expires_at > :now
UNION
SELECT substr(token, 1, 12) FROM event_results WHERE token >= '~' AND token < '~g' AND lease_expires_at > :now

-- name: events_of_process
-- Returns events that a process holds. Relies on events_token.
SELECT id FROM events
WHERE token >= :incarnation AND token < :incarnation || 'g' AND status = 'PROCESSING'
ORDER BY id LIMIT :limit

-- name: end_handler_claims_of_process
-- Ends the leases of handlers that a process holds on live events. Relies on event_results_token.
UPDATE event_results SET lease_expires_at = :now
WHERE token >= :incarnation AND token < :incarnation || 'g' AND lease_expires_at > :now
  AND EXISTS (SELECT 1 FROM events WHERE events.id = event_results.id)

-- name: end_locks_of_process
-- Ends the leases of locks that a process holds. Reads all locks.
UPDATE locks SET expires_at = :now
WHERE token >= :incarnation AND token < :incarnation || 'g' AND expires_at > :now
