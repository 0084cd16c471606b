-- Reverts 0003: ordering keys have no effect any more, and deferred events may be claimed.
DROP TRIGGER events_ordering_key_left ON events;
DROP TRIGGER events_ordering_key_returned ON events;
UPDATE events SET lane = 2 WHERE lane = 3;
DROP FUNCTION ordering_key_moves_on, first_of_ordering_keys, ordering_key_lock;
