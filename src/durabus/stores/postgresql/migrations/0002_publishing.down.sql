DROP FUNCTION add_events, add_up_counts, log_transaction, the_time;
