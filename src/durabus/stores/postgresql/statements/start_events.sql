-- Work began. Relies on events_id.
UPDATE {schema}.events SET started_at = to_timestamp($2), updated_at = to_timestamp($2) WHERE id = ANY ($1::bigint[])
