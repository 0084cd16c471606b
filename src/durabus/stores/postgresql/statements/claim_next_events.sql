-- Claims the next events of a bus: see the function.
SELECT * FROM {schema}.claim_next_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
