-- Makes those who change the handlers of a bus wait for each other.
SELECT 1 FROM {schema}.event_buses WHERE bus = $1 FOR UPDATE
