-- How far a reader of the log has come.
SELECT position FROM {schema}.positions WHERE name = $1
