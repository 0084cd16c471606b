-- So that the id of a trimmed event is never given again.
UPDATE counters SET value = max(value, :id) WHERE name = 'forgotten_event_id'
