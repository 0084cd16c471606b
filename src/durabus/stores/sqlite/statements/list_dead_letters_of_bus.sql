-- Dead letters of a bus, newest first. Walks dead_letters_bus backwards.
SELECT {dead_letter} FROM dead_letters WHERE bus = :bus
ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset
