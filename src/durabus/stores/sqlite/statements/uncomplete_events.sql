-- Takes back what complete_events.sql wrote: its entries are the last ones of the log, and nobody has seen them yet.
DELETE FROM event_log WHERE position > :last - :count AND position <= :last
