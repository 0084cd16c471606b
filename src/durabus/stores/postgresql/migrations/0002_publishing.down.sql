DROP TRIGGER events_ordering_key_left ON events;
DROP TRIGGER events_ordering_key_returned ON events;
DROP FUNCTION trim_completed, register_handlers, drop_log_partition, archived_until, make_log_partitions, ordering_key_moves_on,
    first_of_ordering_keys, ordering_key_lock, add_events;
