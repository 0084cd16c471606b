-- Which list of handlers a bus has.
SELECT revision::text FROM {schema}.event_buses WHERE bus = $1
