-- Frees the locks of claims that were ended in this transaction: see the function.
SELECT {schema}.free_event_locks($1, $2)
