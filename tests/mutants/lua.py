"""The functions that run inside Redis."""

from tests.mutants.mutant import Mutant

FUNCTIONS = "stores/redis/functions/"
LIFECYCLE = f"{FUNCTIONS}shared/10_lifecycle.lua"
SUITE = "tests/conformance/test_redis.py::TestRedisStore::test_"
STALE = f"{SUITE}a_write_under_a_lost_claim_changes_nothing"

LUA = (
    Mutant(
        "Redis: token",
        LIFECYCLE,
        "return state[TOKEN] == token and state[FENCE] == fence and",
        "return state[FENCE] == fence and",
        f"{STALE}[wrong token-complete plainly]",
        "A stranger ends an event that another works on.",
    ),
    Mutant(
        "Redis: fence",
        LIFECYCLE,
        "return state[TOKEN] == token and state[FENCE] == fence and",
        "return state[TOKEN] == token and",
        f"{STALE}[wrong fence-complete plainly]",
        "A former holder writes.",
    ),
    Mutant(
        "Redis: lease that is over",
        LIFECYCLE,
        "if state[STATUS] ~= 'PROCESSING' or state[EXPIRES] > tx.now then",
        "if state[STATUS] ~= 'PROCESSING' or state[EXPIRES] > tx.now - 3600 then",
        f"{SUITE}another_worker_takes_over_when_the_lease_is_over",
        "The events of a dead worker stay where they are.",
    ),
    Mutant(
        "Redis: events that are due",
        f"{FUNCTIONS}shared/07_queue.lua",
        "if state[DUE] <= tx.now then",
        "if true then",
        f"{SUITE}a_delayed_event_is_not_claimed_before_it_is_due",
        "A delayed event is handled early.",
    ),
    Mutant(
        "Redis: priority",
        f"{FUNCTIONS}shared/03_members.lua",
        "2147483648 - priority, id",
        "2147483648, id",
        f"{SUITE}larger_priority_goes_first",
        "What is urgent waits behind the backlog.",
    ),
    Mutant(
        "Redis: attempts that are used up",
        LIFECYCLE,
        "if not delay or (limit and state[ATTEMPTS] >= limit) then",
        "if not delay or (limit and state[ATTEMPTS] > limit) then",
        f"{SUITE}a_failure_is_final_when_the_events_own_attempts_are_used_up",
        "An event is tried once more than allowed.",
    ),
    Mutant(
        "Redis: attempt of a release",
        LIFECYCLE,
        """  handlers.merge(tx, state, results)
  state[ATTEMPTS] = state[ATTEMPTS] - 1""",
        "  handlers.merge(tx, state, results)",
        f"{SUITE}a_released_event_gets_its_attempt_back",
        "Every deployment costs an attempt.",
    ),
    Mutant(
        "Redis: a lock that is held",
        f"{FUNCTIONS}shared/06_locks.lua",
        "or lock[L_TOKEN] == token or lock[L_EXPIRES] <= tx.now",
        "or true",
        f"{SUITE}a_held_lock_is_refused_until_its_lease_is_over",
        "Two hold one lock.",
    ),
    Mutant(
        "Redis: fence of a lock that is renewed",
        f"{FUNCTIONS}renew_lock.lua",
        "lock[L_TOKEN] ~= token or lock[L_FENCE] ~= fence",
        "lock[L_TOKEN] ~= token",
        f"{SUITE}a_write_under_a_lost_lock_changes_nothing[wrong fence-renew]",
        "A former holder keeps a lock.",
    ),
    Mutant(
        "Redis: token of a lock that is released",
        f"{FUNCTIONS}release_lock.lua",
        "lock[L_FENCE] ~= fence or (lock[L_TOKEN] and lock[L_TOKEN] ~= token)",
        "lock[L_FENCE] ~= fence",
        f"{SUITE}a_write_under_a_lost_lock_changes_nothing[wrong token-release]",
        "A stranger frees a lock.",
    ),
    Mutant(
        "Redis: token of a handler",
        f"{FUNCTIONS}shared/09_handlers.lua",
        "return handler and handler[H_TOKEN] == token and handler[H_FENCE] == fence and handler",
        "return handler and handler[H_FENCE] == fence and handler",
        f"{SUITE}a_write_under_a_lost_handler_claim_changes_nothing[wrong token-complete]",
        "A stranger writes a handler's result.",
    ),
    Mutant(
        "Redis: idempotency key",
        f"{FUNCTIONS}add_events.lua",
        "or tonumber(stored[n] or nil) or (key and by_key[key])",
        "or tonumber(stored[n] or nil)",
        f"{SUITE}a_publish_with_a_known_key_returns_the_stored_event",
        "A publish that is repeated is handled twice.",
    ),
    Mutant(
        "Redis: event id",
        f"{FUNCTIONS}add_events.lua",
        "or tonumber(stored[n] or nil) or (key and by_key[key])",
        "or (key and by_key[key])",
        f"{SUITE}a_publish_with_a_known_event_id_returns_the_stored_event",
        "A publish that is repeated is handled twice.",
    ),
    Mutant(
        "Redis: order of a key",
        f"{FUNCTIONS}shared/08_ordering_keys.lua",
        "if not state or state[STATUS] ~= 'PROCESSING' then",
        "if true then",
        f"{SUITE}an_event_waits_while_another_of_its_key_is_claimed",
        "Two workers work on one order at the same time.",
    ),
    Mutant(
        "Redis: age of dead letters",
        f"{FUNCTIONS}purge_dead_letters.lua",
        "local last = '[' .. struct.pack('>d', till) .. '\\255'",
        "local last = '+'",
        f"{SUITE}purging_takes_the_instant_itself_too",
        "A purge of old dead letters takes the new ones.",
    ),
    Mutant(
        "Redis: any of the tags",
        f"{FUNCTIONS}shared/07_queue.lua",
        "  for _, tag in ipairs(tags) do\n    for _, member",
        "  for _, tag in ipairs({ tags[1] }) do\n    for _, member",
        f"{SUITE}a_claim_by_tags_takes_events_that_carry_one_of_them",
        "A worker for two kinds of work gets only one of them.",
    ),
)
