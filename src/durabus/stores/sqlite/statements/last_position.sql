-- The largest position ever given, also if its entry was trimmed since.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event_log'), 0)
