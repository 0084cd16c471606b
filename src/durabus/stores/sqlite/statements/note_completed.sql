-- As note_counts.sql, for what complete_events.sql wrote: its entries are the last ones of the log.
INSERT INTO event_counts (bus, live, completed, completed_with_errors, failed)
SELECT bus, -count(*), count(*), 0, 0 FROM event_log
WHERE position > :last - :count AND position <= :last GROUP BY bus
ON CONFLICT (bus) DO UPDATE SET live = live + excluded.live, completed = completed + excluded.completed
