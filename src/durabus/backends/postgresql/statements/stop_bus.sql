-- Marks a bus as stopped.
UPDATE {schema}.event_buses SET stopped_at = {schema}.the_time($2) WHERE bus = $1
