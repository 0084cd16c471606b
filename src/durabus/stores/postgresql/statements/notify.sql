-- Tells every listener that these buses may have something to claim.
SELECT pg_notify($1, bus) FROM unnest($2::text[]) AS bus
