DROP FUNCTION complete_and_read_events, complete_and_claim_events, complete_events, claim_next_events,
    next_tagged_events, free_event_locks;
