-- The next fence for a lock, above every one that any lock ever had, so that forgotten locks never repeat one.
SELECT nextval('{schema}.lock_fences')
