-- Who holds a lock; nobody takes or frees it until this transaction ends.
SELECT fence, token FROM {schema}.locks WHERE key = $1 FOR UPDATE
