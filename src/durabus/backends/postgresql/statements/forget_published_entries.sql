-- The PUBLISHED entries of trimmed events. Relies on published_event.
DELETE FROM {schema}.published WHERE event_id = ANY ($1::text[]::uuid[]) AND known RETURNING 1
