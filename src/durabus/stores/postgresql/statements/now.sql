-- The server's clock.
SELECT date_part('epoch', clock_timestamp())
