-- Marks buses as stopped. Relies on the primary key of event_buses.
UPDATE {schema}.event_buses SET stopped_at = {schema}.the_time($2) WHERE bus = ANY ($1::text[])
