-- The ids behind event_ids. Relies on published_event.
SELECT id, event_id::text FROM {schema}.published WHERE event_id = ANY ($1::text[]::uuid[]) AND known
