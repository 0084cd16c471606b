-- Dead letters below an id, as find_live.sql. Walks the primary key of dead_letters, or uses dead_letters_parent.
SELECT {dead_letter} FROM {schema}.dead_letters WHERE id < $1
