-- Makes the days of the log that will be needed soon: see the function.
SELECT {schema}.make_log_days($1, $2)
