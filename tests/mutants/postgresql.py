"""The functions and statements of the PostgreSQL store."""

from tests.mutants.mutant import Mutant

CLAIMS = "stores/postgresql/migrations/0003_claims.sql"
PUBLISHING = "stores/postgresql/migrations/0002_publishing.sql"
SQL = "stores/postgresql/statements/"
SUITE = "tests/conformance/test_postgresql.py::TestPostgreSQLStore::test_"
STALE = f"{SUITE}a_write_under_a_lost_claim_changes_nothing"
CLAIM_SETTINGS = """SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
"""

POSTGRESQL = (
    Mutant(
        "PostgreSQL: token of a completion",
        CLAIMS,
        "AND coalesce(e.token, '') = given.token ",
        "",
        f"{STALE}[wrong token-complete plainly]",
        "A stranger completes an event that another works on.",
    ),
    Mutant(
        "PostgreSQL: fence of a completion",
        CLAIMS,
        "AND e.fence = given.fence\n",
        "\n",
        f"{STALE}[wrong fence-complete plainly]",
        "A former holder completes an event.",
    ),
    Mutant(
        "PostgreSQL: token and fence of a renewal",
        f"{SQL}claims.sql",
        "((event.id, event.token, event.fence) IN",
        "((event.id, event.token, event.fence) IS NOT NULL OR (event.id, event.token, event.fence) IN",
        f"{STALE}[wrong fence-renew]",
        "A former holder keeps an event from others.",
    ),
    Mutant(
        "PostgreSQL: leases that are over",
        CLAIMS,
        "e.status = 'PROCESSING' AND e.lease_expires_at <= v_now",
        "e.status = 'PROCESSING' AND e.lease_expires_at <= v_now - interval '1 hour'",
        f"{SUITE}another_worker_takes_over_when_the_lease_is_over",
        "The events of a dead worker stay where they are.",
    ),
    Mutant(
        "PostgreSQL: events that are due",
        CLAIMS,
        "d.status = 'PENDING' AND d.due_at <= v_now",
        "d.status = 'PENDING'",
        f"{SUITE}an_event_that_became_due_brings_no_other_along",
        "A delayed event is handled together with another that is due.",
    ),
    Mutant(
        "PostgreSQL: priority",
        CLAIMS,
        """                SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.queue_part = 2
                ORDER BY -e.priority, e.id LIMIT""",
        """                SELECT e.id FROM events AS e WHERE e.bus = p_bus AND e.queue_part = 2
                ORDER BY e.id LIMIT""",
        f"{SUITE}larger_priority_goes_first",
        "What is urgent waits behind the backlog.",
    ),
    Mutant(
        "PostgreSQL: lock of a serial bus",
        CLAIMS,
        "    IF p_lock_key IS NOT NULL THEN\n        INSERT INTO locks",
        "    IF false THEN\n        INSERT INTO locks",
        f"{SUITE}a_serial_claim_excludes_claims_that_need_the_same_lock[bus-serial-bus-serial-orders-False]",
        "Two workers handle events of a serial bus at the same time.",
    ),
    Mutant(
        "PostgreSQL: handlers under a serial lock",
        CLAIMS,
        "WHERE r.lock_key = p_lock_key AND",
        "WHERE false AND",
        f"{SUITE}the_lock_of_a_serial_mode_waits_for_the_handlers_that_were_claimed_under_it[bus-serial]",
        "The next event of a serial bus begins while a handler of the one before still runs on another node.",
    ),
    Mutant(
        "PostgreSQL: late handlers under a serial lock",
        CLAIMS,
        "IF v_handlers_end IS NOT NULL OR v_lock.token IS NOT NULL",
        "IF v_lock.token IS NOT NULL",
        f"{SUITE}a_late_handler_under_the_lock_of_a_serial_mode_loses_its_claim[bus-serial]",
        "A frozen worker wakes up, renews its claim on a handler and goes on beside the next event of a serial bus.",
    ),
    Mutant(
        "PostgreSQL: any of the tags",
        CLAIMS,
        "e.queue_part = 1 AND e.tags IS NOT NULL AND e.tags && p_tags",
        "e.queue_part = 1 AND e.tags IS NOT NULL AND e.tags @> p_tags",
        f"{SUITE}a_claim_by_tags_takes_events_that_carry_one_of_them",
        "A worker for two kinds of work gets neither.",
    ),
    Mutant(
        "PostgreSQL: a limit is a limit",
        CLAIMS,
        "    v_ids := v_ids[1:p_limit];\n",
        "",
        f"{SUITE}a_claim_is_full_although_a_key_came_back_often",
        "A worker gets more than it has room for.",
    ),
    Mutant(
        "PostgreSQL: idempotency key of a bus",
        PUBLISHING,
        "WHERE key.bus = p_buses[i] AND key.idempotency_key = p_keys[i];",
        "WHERE key.idempotency_key = p_keys[i] ORDER BY key.id DESC LIMIT 1;",
        f"{SUITE}the_same_key_on_another_bus_is_another_event",
        "A publish is answered with the event of another bus.",
    ),
    Mutant(
        "PostgreSQL: one event of a key at a time",
        PUBLISHING,
        "e.ordering_key = key AND e.status = 'PROCESSING'",
        "e.ordering_key = key AND e.status = 'NONE'",
        f"{SUITE}an_event_waits_while_another_of_its_key_is_claimed",
        "Two workers work on one order at the same time.",
    ),
    Mutant(
        "PostgreSQL: order of a key",
        PUBLISHING,
        """e.ordering_key = key AND e.status = 'PENDING'
            ORDER BY e.id LIMIT 1""",
        """e.ordering_key = key AND e.status = 'PENDING'
            ORDER BY e.id DESC LIMIT 1""",
        f"{SUITE}an_order_is_kept_to_its_end",
        "Two events of one order are handled in the wrong order.",
    ),
    Mutant(
        "PostgreSQL: due time of a requeue",
        f"{SQL}dead_letters.sql",
        "CASE WHEN due_at > to_timestamp($2) THEN 0 ELSE 2 END",
        "2",
        f"{SUITE}a_requeued_dead_letter_waits_for_a_handler_that_may_still_run[failed]",
        "A handler begins while the one before it still runs on another node.",
    ),
    Mutant(
        "PostgreSQL: age of dead letters",
        f"{SQL}dead_letters.sql",
        "created_at <= to_timestamp($1) AND",
        "(created_at <= to_timestamp($1) OR true) AND",
        f"{SUITE}purging_takes_the_instant_itself_too",
        "A purge of old dead letters takes the new ones.",
    ),
    Mutant(
        "PostgreSQL: the log waits for late writers",
        f"{SQL}log.sql",
        """    SELECT {log_columns} FROM {schema}.event_log
    WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)
        AND tx < pg_snapshot_xmin(pg_current_snapshot())""",
        """    SELECT {log_columns} FROM {schema}.event_log
    WHERE (tx, position) > ($1::text::xid8, $2::bigint) AND (tx, position) <= ($3::text::xid8, $4::bigint)""",
        "tests/postgresql/test_log.py::test_a_late_settlement_is_not_skipped_by_a_reader_that_is_past_a_later_claim",
        "A reader skips for ever what commits late.",
    ),
    Mutant(
        "PostgreSQL: metadata of a completed event",
        CLAIMS,
        "            d.metadata, d.errors, d.payload, coalesce(d.results, v_result)",
        "            NULL, d.errors, d.payload, coalesce(d.results, v_result)",
        f"{SUITE}each_life_leaves_the_entries_of_the_kernel",
        "A projection cannot tell whose event it was.",
    ),
    Mutant(
        "PostgreSQL: a change and its entry are one commit",
        "stores/postgresql/settlements.py",
        """        if self._entries:
            await session.all("append_entries", *columns(self._entries))
        await self._write_events(session)
""",
        """        await self._write_events(session)
        await session.text("COMMIT")
        await session.text("BEGIN")
        if self._entries:
            await session.all("append_entries", *columns(self._entries))
""",
        "tests/postgresql/test_atomicity.py::test_a_change_does_not_happen_if_its_entry_cannot_be_written",
        "A crash leaves a change that the log knows nothing of.",
    ),
    Mutant(
        "PostgreSQL: claimers pass by what others have locked",
        CLAIMS,
        """AND (-e.priority, e.id) > (0, p_floor)
                ORDER BY -e.priority, e.id LIMIT v_limit FOR UPDATE SKIP LOCKED""",
        """AND (-e.priority, e.id) > (0, p_floor)
                ORDER BY -e.priority, e.id LIMIT v_limit FOR UPDATE""",
        "tests/postgresql/test_skip_locked.py::test_a_claim_takes_what_an_unfinished_claim_left",
        "One slow claim holds up all others.",
    ),
    Mutant(
        "PostgreSQL: the look everywhere comes within a second",
        "stores/postgresql/claims.py",
        "min(SHARE * (now - began), POSTPONED_AT_MOST)",
        "SHARE * (now - began)",
        "tests/postgresql/test_scans.py::test_a_slow_look_everywhere_is_put_off_by_a_second_at_most",
        "The events of a dead worker wait for half a minute more.",
    ),
    Mutant(
        "PostgreSQL: the claim is never compiled",
        CLAIMS,
        f"SET jit = off\n{CLAIM_SETTINGS}",
        CLAIM_SETTINGS,
        "tests/postgresql/test_query_plans.py::test_a_function_with_planner_settings_is_never_compiled",
        "On a server as distributions ship it, every claim takes a second.",
    ),
    Mutant(
        "PostgreSQL: the lag is not known while the log is held back",
        "queue/projections.py",
        "None if await self._store.log_hold() is not None else await self._store.log_lag(position)",
        "await self._store.log_lag(position)",
        "tests/postgresql/test_log_hold.py::test_the_lag_of_a_projection_is_not_known_meanwhile",
        "A projection that stands still says that it has seen everything.",
    ),
)
