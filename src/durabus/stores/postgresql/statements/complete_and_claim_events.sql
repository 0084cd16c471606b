-- Completes plain claims and claims the next events, in one step: see the function.
SELECT * FROM {schema}.complete_and_claim_events(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
    $18, $19, $20, $21, $22, $23, $24, $25, $26, $27
)
