-- As get_dead_letters, locked in one order: nobody requeues or purges them meanwhile.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
