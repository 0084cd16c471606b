-- Buses that have live events, by name. Jumps from bus to bus in events_ready, events_delayed and events_leased, so
-- neither the backlog of a bus nor the number of cold buses matters. (An empty name is no name: it ends the walk.)
WITH RECURSIVE active (bus, number) AS (
    SELECT :after, 0
    UNION ALL
    SELECT (
        SELECT min(next) FROM (
            SELECT min(bus) AS next FROM events WHERE ready = 1 AND bus > active.bus
            UNION ALL
            SELECT min(bus) FROM events WHERE ready = 0 AND status = 'PENDING' AND bus > active.bus
            UNION ALL
            SELECT min(bus) FROM events WHERE status = 'PROCESSING' AND bus > active.bus
        )
    ), number + 1
    FROM active WHERE bus IS NOT NULL AND number < :limit
)
SELECT bus FROM active WHERE bus IS NOT NULL AND number > 0
