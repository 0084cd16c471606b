"""What the Redis store promises."""

from durabus.store.guarantees import CRASHES, Guarantees

SUITE = "conformance/test_redis.py::TestRedisStore"

GUARANTEES = Guarantees(
    title="Redis and Valkey",
    durability=(
        "in the server's memory. `appendfsync` says when it is in the append-only file too: before the reply "
        "(`always`), within two seconds (`everysec`), or when the operating system writes it (`no`)."
    ),
    lost=(
        "with `appendonly yes` and `appendfsync always` nothing. With `everysec` you can lose the last two seconds: by "
        "a power cut, and by kill -9 of the server if its disk was slow. A failover may lose the newest writes, "
        "because replication is asynchronous; fences may then repeat. Without the append-only file a restart loses "
        "everything since the last dump."
    ),
    order="claims by priority, then by id. The log is a stream: the order in which the functions ran.",
    unknown_outcome=(
        "the store repeats the call until `timeout`; it takes effect once. Then `StoreUnavailableError`: repeat it."
    ),
    clock="the server's, never backwards.",
    takeover=(
        "within three seconds after kill -9. A process that is frozen or cut off for 2.5 s is taken over too: its "
        "handler may overlap with the next one, and fences refuse its writes."
    ),
    wake_up="pub/sub, with the worker's poll behind it.",
    limits="all data in memory and in one hash slot; `maxmemory-policy` must be `noeviction`; trim the history.",
    not_for="what must survive a failover without loss, caller transactions, histories larger than memory.",
    in_short={
        "survives_process_kill": "of workers: yes; of the server: with `appendfsync always`",
        "survives_power_loss": "with `appendfsync always` (not tested)",
    },
    shown_by={
        "durability": (
            "redis/test_doctor.py::test_a_durable_server_is_only_noted",
            "redis/test_doctor.py::test_settings_that_lose_events_are_found",
        ),
        "lost": (
            f"{CRASHES}[redis]",
            "redis/test_schema.py::test_a_store_reports_that_its_data_are_gone",
            "not tested: a power cut, writes lost by a failover",
        ),
        "order": (
            f"{SUITE}::test_larger_priority_goes_first",
            f"{SUITE}::test_events_come_in_the_order_they_were_published",
            f"{SUITE}::test_a_reader_misses_nothing_while_threads_write",
        ),
        "unknown_outcome": (
            "redis/test_unknown_outcome.py::test_every_step_of_an_event_takes_effect_once",
            "redis/test_troubles.py::test_without_a_server_a_call_ends_in_time",
        ),
        "clock": (
            "redis/test_real_time.py::TestRedisStoreInRealTime::test_another_worker_takes_over_when_the_lease_is_over",
        ),
        "takeover": (
            "processes/test_takeover.py::test_the_events_of_a_killed_process_are_taken_over_at_once[redis]",
            f"{SUITE}::test_the_fence_decides_if_the_process_was_wrongly_taken_for_dead",
        ),
        "wake_up": (
            f"{SUITE}::test_a_publish_wakes_waiting_workers",
            "redis/test_hints.py::test_a_lost_connection_wakes_waiting_workers_and_the_next_wait_listens_again",
        ),
        "limits": (
            "redis/test_library.py::test_all_keys_share_one_slot",
            "redis/test_troubles.py::test_a_full_server_takes_nothing_but_can_be_emptied",
        ),
        "not_for": (
            f"{SUITE}::test_events_become_claimable_with_the_callers_commit",
            "redis/test_doctor.py::test_short_memory_is_found",
            "not tested: writes lost by a failover",
        ),
    },
)
