DROP FUNCTION meet_waits, meet_found_waits, payload_as_jsonb, wake_parents;
