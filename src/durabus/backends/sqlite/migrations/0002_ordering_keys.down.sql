-- Takes 0002 back: the order of keys is forgotten, what was put aside may be claimed.
DROP TRIGGER events_line_returned;
DROP TRIGGER events_line_left;
UPDATE events SET ready = 0 WHERE ready = 2;
DROP INDEX events_line;
ALTER TABLE events DROP COLUMN ordering_key;
