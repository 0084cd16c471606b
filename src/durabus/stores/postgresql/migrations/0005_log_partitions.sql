-- Makes the log partitions of the next days. An existing one costs one look. Attaching a table does not wait for
-- writers of other partitions, as creating it in place would; and it gives up after a timeout rather than block them.
CREATE FUNCTION make_log_partitions(p_now double precision, p_days integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT
SET lock_timeout = '2s'
AS $$
DECLARE
    v_today date := (the_time(p_now) AT TIME ZONE 'UTC')::date;
    v_day date;
    v_name text;
    v_made integer := 0;
BEGIN
    FOR v_day IN SELECT v_today + n FROM generate_series(0, p_days) AS n LOOP
        v_name := 'event_log_' || to_char(v_day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || v_name) IS NOT NULL;
        PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || '.event_log', 1));
        CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || v_name) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE %I (LIKE event_log INCLUDING DEFAULTS)', v_name);
            EXECUTE format(
                'ALTER TABLE event_log ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                v_name, v_day::text || ' 00:00:00+00', (v_day + 1)::text || ' 00:00:00+00'
            );
            v_made := v_made + 1;
        EXCEPTION WHEN check_violation OR lock_not_available OR duplicate_table THEN
            NULL; -- another process made it, or event_log_rest has entries of that day, which are only slower to drop
        END;
    END LOOP;
    RETURN v_made;
END
$$;

-- Drops the oldest log partition whose day ended before an instant, with its COMPLETED events and their names, keys and
-- results. Entries of other events move to event_log_rest. Returns the name of the partition, or NULL if there is none.
-- Waits at most two seconds for other users of the log, because all later ones wait behind it.
CREATE FUNCTION drop_log_partition(p_now double precision, p_older_than double precision) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET lock_timeout = '2s'
AS $$
DECLARE
    v_before date := ((the_time(p_now) - make_interval(secs => p_older_than)) AT TIME ZONE 'UTC')::date;
    v_day text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || '.event_log', 1));
    SELECT day.relname INTO v_day
    FROM pg_inherits JOIN pg_class AS day ON day.oid = pg_inherits.inhrelid
    WHERE pg_inherits.inhparent = 'event_log'::regclass AND day.relname ~ '^event_log_[0-9]{8}$'
        AND to_date(right(day.relname, 8), 'YYYYMMDD') < v_before
    ORDER BY day.relname LIMIT 1;
    IF v_day IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('ALTER TABLE event_log DETACH PARTITION %I', v_day);
    EXECUTE format('CREATE TEMPORARY TABLE ended ON COMMIT DROP AS SELECT id, event_id, bus FROM %I WHERE completed', v_day);
    EXECUTE format(
        'INSERT INTO event_log SELECT * FROM %I AS entry '
        'WHERE NOT EXISTS (SELECT FROM pg_temp.ended WHERE ended.id = entry.id) AND ('
        'EXISTS (SELECT FROM events WHERE events.id = entry.id) '
        'OR EXISTS (SELECT FROM dead_letters WHERE dead_letters.id = entry.id) '
        'OR EXISTS (SELECT FROM event_log AS later WHERE later.id = entry.id AND later.completed)) ORDER BY position',
        v_day
    );
    EXECUTE format('DROP TABLE %I', v_day);
    DELETE FROM event_log AS entry USING pg_temp.ended WHERE entry.id = ended.id;
    DELETE FROM published AS entry USING pg_temp.ended WHERE entry.event_id = ended.event_id AND entry.known;
    DELETE FROM idempotency_keys AS key USING pg_temp.ended WHERE key.id = ended.id;
    DELETE FROM event_results AS result USING pg_temp.ended WHERE result.id = ended.id;
    INSERT INTO event_count_notes (bus, completed) SELECT bus, -count(*) FROM pg_temp.ended GROUP BY bus;
    DROP TABLE pg_temp.ended;
    RETURN v_day;
END
$$;
