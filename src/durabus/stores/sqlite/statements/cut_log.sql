-- Where a piece of the log ends that has so many entries: one step of the walk along the primary key of event_log.
SELECT position FROM event_log WHERE position > :after AND position <= :until ORDER BY position LIMIT 1 OFFSET :skip
