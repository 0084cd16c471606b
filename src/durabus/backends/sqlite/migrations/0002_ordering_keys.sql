-- Events of one ordering key line up. A claim that comes upon one which is not the first of its key puts it aside
-- (ready = 2); whatever takes the one before it out of the way brings the first of the key back (ready = 0: due, and
-- made ready by the next claim). Nothing else changes for events without a key.

ALTER TABLE events ADD COLUMN ordering_key TEXT GENERATED ALWAYS AS (
    CASE WHEN json_valid(metadata) AND json_type(metadata, '$.ordering_key') = 'text'
    THEN nullif(json_extract(metadata, '$.ordering_key'), '') END
) VIRTUAL;

CREATE INDEX events_line ON events (bus, ordering_key, status, id) WHERE ordering_key IS NOT NULL;

CREATE TRIGGER events_line_left AFTER DELETE ON events WHEN OLD.ordering_key IS NOT NULL
BEGIN
    UPDATE events SET ready = 0
    WHERE ready = 2 AND id = (
        SELECT min(id) FROM events
        WHERE bus = OLD.bus AND ordering_key = OLD.ordering_key AND status = 'PENDING'
    );
END;

-- Only a statement that sets due_at returns an event to the queue.
CREATE TRIGGER events_line_returned AFTER UPDATE OF due_at ON events WHEN NEW.ordering_key IS NOT NULL
BEGIN
    UPDATE events SET ready = 0
    WHERE ready = 2 AND id = (
        SELECT min(id) FROM events
        WHERE bus = NEW.bus AND ordering_key = NEW.ordering_key AND status = 'PENDING'
    );
END;
