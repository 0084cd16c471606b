-- Dead letters, newest first. Walks dead_letters_created backwards.
SELECT {dead_letter} FROM {schema}.dead_letters ORDER BY created_at DESC, id DESC LIMIT $1 OFFSET $2
