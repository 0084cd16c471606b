-- How many dead letters there are of each kind. Counts in dead_letters_bus alone.
SELECT status, count(*) FROM dead_letters GROUP BY status
