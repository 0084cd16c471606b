-- What a transaction changed in the numbers of a bus.
INSERT INTO event_counts (bus, live, completed, completed_with_errors, failed)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (bus) DO UPDATE SET
    live = live + excluded.live,
    completed = completed + excluded.completed,
    completed_with_errors = completed_with_errors + excluded.completed_with_errors,
    failed = failed + excluded.failed
