-- Least privilege: three roles without login, to be granted to the users that durabus connects as. Run this once after
-- `durabus db migrate`, as the owner of the schema; for another schema change the name in the first three statements.
--
--     GRANT durabus_publisher TO shop_web;       publishes, also in its own transactions; sees what was published
--     GRANT durabus_worker TO shop_worker;       publishes, claims, settles, registers, trims
--     GRANT durabus_reader TO shop_reports;      reads everything, the log included, and writes nothing
--
-- None of them can change tables or drop log partitions: only the owner of the schema can.

SET search_path = durabus;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'durabus_publisher') THEN
        CREATE ROLE durabus_publisher NOLOGIN;
        CREATE ROLE durabus_worker NOLOGIN;
        CREATE ROLE durabus_reader NOLOGIN;
    END IF;
END $$;
GRANT USAGE ON SCHEMA durabus TO durabus_publisher, durabus_worker, durabus_reader;

-- Opening a store reads these tables, and so does a publish of a known event.
GRANT SELECT ON durabus_migrations, durabus_objects, installation, events, dead_letters, published, event_log,
    idempotency_keys TO durabus_publisher, durabus_worker, durabus_reader;

-- A publish looks whether any event waits. The function meet_waits does the rest with the rights of its owner.
GRANT SELECT (status) ON event_results TO durabus_publisher;
GRANT INSERT ON published, events, event_count_notes TO durabus_publisher, durabus_worker;
GRANT INSERT, DELETE ON idempotency_keys TO durabus_publisher, durabus_worker;
GRANT USAGE ON SEQUENCE event_ids, log_positions TO durabus_publisher, durabus_worker;

GRANT SELECT, INSERT, UPDATE, DELETE ON events, dead_letters, published, event_log, idempotency_keys, event_results,
    unchecked_waits, locks, event_buses, event_handlers, processes, positions TO durabus_worker;
GRANT USAGE ON SEQUENCE lock_fences, handler_revisions TO durabus_worker;

GRANT SELECT ON event_results, locks, event_buses, event_handlers, subscriptions, processes, positions, event_counts,
    event_count_notes TO durabus_worker, durabus_reader;
