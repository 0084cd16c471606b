-- A number that no list of handlers had before.
UPDATE counters SET value = value + 1 WHERE name = 'revision'
