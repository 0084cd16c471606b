-- Buses that have live events, by name. Jumps from bus to bus in events_fresh, events_returned, events_delayed and
-- events_leased, so neither the backlog of a bus nor the number of cold buses matters.
WITH RECURSIVE active (bus, number) AS (
    SELECT $1::text COLLATE "C", 0
    UNION ALL
    SELECT least(
        (SELECT min(bus) FROM {schema}.events WHERE lane = 1 AND bus > active.bus),
        (SELECT min(bus) FROM {schema}.events WHERE lane = 2 AND bus > active.bus),
        (SELECT min(bus) FROM {schema}.events WHERE lane = 0 AND status = 'PENDING' AND bus > active.bus),
        (SELECT min(bus) FROM {schema}.events WHERE status = 'PROCESSING' AND bus > active.bus)
    ), number + 1
    FROM active WHERE bus IS NOT NULL AND number < $2
)
SELECT bus FROM active WHERE bus IS NOT NULL AND number > 0
