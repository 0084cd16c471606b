-- Dead letters of a bus, newest first. Walks dead_letters_bus backwards.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE bus = $3
ORDER BY created_at DESC, id DESC LIMIT $1 OFFSET $2
