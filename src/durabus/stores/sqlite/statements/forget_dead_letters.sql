-- Dead letters that were purged, removed or requeued. Relies on the primary key of dead_letters.
DELETE FROM dead_letters WHERE id IN (SELECT value FROM json_each(:ids))
