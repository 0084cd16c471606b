-- Drops every table with what it holds.
DROP VIEW subscriptions;
DROP TABLE event_count_notes, event_counts, positions, processes, event_handlers, event_buses, locks, unchecked_waits, event_results,
    idempotency_keys, event_log, published, dead_letters, events, installation;
DROP SEQUENCE event_ids, lock_fences, handler_revisions, log_positions;
DROP FUNCTION add_up_counts, log_transaction, the_time, ordering_key_of,
    wait_digest, names_of_shape, digest_of_fields, wait_shape;
