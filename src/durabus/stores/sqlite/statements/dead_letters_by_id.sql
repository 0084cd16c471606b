-- Which of some events are dead letters, as what forgets them needs it. Relies on the primary key of dead_letters.
SELECT id, event_id, bus, idempotency_key FROM dead_letters
WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id
