-- Reverts 0001: drops every table with what it holds, then every sequence and function.
DROP VIEW subscriptions;
DROP TABLE event_count_notes, event_counts, positions, event_handlers, event_buses, locks, event_results,
    idempotency_keys, event_log, published, dead_letters, events, installation;
DROP SEQUENCE event_ids, lock_fences, handler_revisions, log_positions;
DROP FUNCTION trim_completed, register_handlers, drop_log_partition, make_log_partitions, complete_and_claim_events,
    complete_events, claim_next_events, next_tagged_events, free_event_locks, ordering_key_moves_on,
    first_of_ordering_keys, ordering_key_lock, add_events, add_up_counts, log_transaction, the_time, ordering_key_of;
