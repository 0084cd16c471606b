-- Stores a batch: see the function.
SELECT now, ids, known, dues FROM {schema}.add_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
