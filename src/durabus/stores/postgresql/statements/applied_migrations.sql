-- The steps that were applied, in order.
SELECT number, name, checksum, date_part('epoch', applied_at) FROM {schema}.durabus_migrations ORDER BY number
