-- The event_ids may be published again; the entries stay. Relies on published_event.
UPDATE {schema}.published SET known = false WHERE event_id = ANY ($1::text[]::uuid[]) AND known
