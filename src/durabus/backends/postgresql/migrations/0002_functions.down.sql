-- Takes back the functions.
DROP FUNCTION drop_log_day, make_log_days, complete_and_claim_events, complete_events, claim_next_events,
    next_tagged_events, add_events, add_up_counts, log_transaction, the_time;
