-- Makes those who want the same lock wait for each other until they commit, whether the lock has a row or not.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))
