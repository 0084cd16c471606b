-- So that the id of a forgotten event is never given again.
UPDATE counters SET value = :id WHERE name = 'forgotten_event_id' AND value < :id
