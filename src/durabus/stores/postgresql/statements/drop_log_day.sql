-- Drops the oldest day of the log that is old enough: see the function.
SELECT {schema}.drop_log_day($1, $2)
