-- As note_counts.sql, for dead letters that forget_dead_letters.sql is about to delete.
-- Relies on the primary key of dead_letters.
INSERT INTO event_counts (bus, live, completed, completed_with_errors, failed)
SELECT bus, 0, 0, -sum(status = 'COMPLETED_WITH_ERRORS'), -sum(status = 'FAILED') FROM dead_letters
WHERE id IN (SELECT value FROM json_each(:ids)) GROUP BY bus
ON CONFLICT (bus) DO UPDATE SET
    completed_with_errors = completed_with_errors + excluded.completed_with_errors, failed = failed + excluded.failed
