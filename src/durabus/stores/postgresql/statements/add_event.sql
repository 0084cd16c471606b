-- As the function add_events, for one event without a key, in one statement: no row if its event_id is known.
-- Relies on published_event.
WITH named AS (
    INSERT INTO {schema}.published (id, event_id, bus, type, at, parent_id, tags, metadata)
    VALUES (nextval('{schema}.event_ids'), $2::text::uuid, $3, $4, {schema}.the_time($1), $10::text::uuid, $7, $6)
    ON CONFLICT (event_id) WHERE published.known DO NOTHING
    RETURNING id, at
), stored AS (
    INSERT INTO {schema}.events (
        id, event_id, bus, type, status, lane, priority, attempts, generation, fence, max_attempts, has_results,
        created_at, updated_at, due_at, parent_id, tags, metadata, payload
    )
    SELECT
        id, $2::text::uuid, $3, $4, 'PENDING', CASE WHEN $9::double precision > 0 THEN 0 WHEN $8::integer <> 0 THEN 2 ELSE 1 END,
        $8, 0, 0, 0, $11, false, at, at, at + make_interval(secs => $9), $10::text::uuid,
        CASE WHEN $7 IS NOT NULL THEN ARRAY(SELECT json_array_elements_text($7::json)) END, $6, $5
    FROM named
), counted AS (
    INSERT INTO {schema}.event_count_notes (bus, pending) SELECT $3, 1 FROM named
)
SELECT date_part('epoch', at), id, date_part('epoch', at + make_interval(secs => $9)) FROM named
