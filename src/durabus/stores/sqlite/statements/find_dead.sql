-- Dead letters below an id, as find_live.sql. Walks the primary key of dead_letters, or uses dead_letters_parent.
SELECT {dead_letter} FROM dead_letters WHERE id < :before_id
