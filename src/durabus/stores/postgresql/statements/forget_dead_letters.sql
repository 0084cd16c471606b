-- Dead letters that were removed or requeued. Relies on the primary key of dead_letters.
DELETE FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) RETURNING id
