"""What the PostgreSQL store promises."""

from durabus.store.guarantees import CRASHES, Guarantees

SUITE = "conformance/test_postgresql.py::TestPostgreSQLStore"

GUARANTEES = Guarantees(
    title="PostgreSQL",
    durability=(
        "committed by the server: on its disk with `fsync=on` and `synchronous_commit=on`, which are its defaults."
    ),
    lost=(
        "nothing by kill -9 or a power cut of clients or server. A failover to an asynchronous standby may take the "
        "newest commits."
    ),
    order=(
        "claims by priority, then by id, among those that no other worker is claiming at that moment. The log is the "
        "order of the commits; a transaction that commits late is not skipped."
    ),
    unknown_outcome=(
        "a call whose connection broke is made again on a new one, and takes effect once; if that fails too, "
        "`StoreUnavailableError`: repeat it."
    ),
    clock="the server's.",
    takeover=(
        "within a second after kill -9: an advisory lock ends with the session of the process. A process that is "
        "frozen or cut off keeps its lease until the server gives up its connection. Then it is taken over although "
        "it may still run: its handler may overlap with the next one, and fences refuse its writes. A process that "
        "loses only the connection with the lock takes the lock on another one. With `?pooler=on` only the lease "
        "counts."
    ),
    wake_up="LISTEN/NOTIFY, with the worker's poll behind it; `?pooler=on` leaves only the poll.",
    limits="readers of the log wait for the oldest open transaction; vacuum must run.",
    not_for="a read-only standby: do not point the store at one.",
    in_short={"survives_power_loss": "yes, by PostgreSQL's own promise (not tested)"},
    shown_by={
        "durability": (
            "servers/test_postgresql.py::test_the_server_is_durable_by_default",
            "postgresql/test_doctor.py::test_settings_that_lose_events_are_found",
            "postgresql/test_doctor.py::test_every_needed_setting_is_looked_at",
        ),
        "lost": (
            f"{CRASHES}[postgresql]",
            "not tested: a power cut, a failover",
        ),
        "order": (
            f"{SUITE}::test_larger_priority_goes_first",
            f"{SUITE}::test_racing_batches_share_the_queue_without_doubles",
            "postgresql/test_log.py::test_a_late_commit_is_not_skipped_by_a_reader_that_is_already_past_its_id",
        ),
        "unknown_outcome": (
            "postgresql/test_connections.py::test_a_commit_whose_reply_was_lost_is_repeated_without_effect",
            "postgresql/test_connections.py::test_nothing_is_lost_or_done_twice_while_connections_are_cut",
        ),
        "clock": ("postgresql/test_clock.py::test_a_lease_ends_by_the_servers_clock",),
        "takeover": (
            "processes/test_takeover.py::test_the_events_of_a_killed_process_are_taken_over_at_once[postgresql]",
            "processes/test_takeover.py::test_a_frozen_process_keeps_its_claims[postgresql]",
            f"{SUITE}::test_the_fence_decides_if_the_process_was_wrongly_taken_for_dead",
            "postgresql/test_processes.py::test_a_process_that_cannot_connect_again_lives_on_its_other_connections",
            "postgresql/test_processes.py::test_a_restart_of_the_server_takes_nothing_from_processes_that_live",
        ),
        "wake_up": (
            "postgresql/test_listening.py::test_a_publish_wakes_another_process_at_once",
            "postgresql/test_listening.py::test_without_listening_own_events_still_wake_and_others_wait_for_the_poll",
        ),
        "limits": (
            "postgresql/test_log_hold.py::test_the_holder_is_known_by_pid_age_and_application",
            "postgresql/test_doctor.py::test_a_transaction_that_is_kept_open_is_found",
        ),
        "not_for": ("postgresql/test_connections.py::test_a_read_only_server_is_one_clear_line",),
    },
)
