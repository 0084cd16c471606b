-- How far a reader of the log has come.
SELECT position FROM positions WHERE name = ?
