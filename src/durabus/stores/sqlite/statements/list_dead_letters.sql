-- Dead letters, newest first. Walks dead_letters_created backwards.
SELECT {dead_letter} FROM dead_letters ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset
