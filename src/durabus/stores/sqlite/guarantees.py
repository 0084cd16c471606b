"""What the SQLite store promises."""

from durabus.store.guarantees import CRASHES, Guarantees

SUITE = "conformance/test_sqlite.py::TestSQLiteStore"

GUARANTEES = Guarantees(
    title="SQLite",
    durability="on the disk: WAL with `synchronous=FULL`, all calls that wait share one commit.",
    lost=(
        "nothing by kill -9 or a power cut, as far as the disk keeps what it confirmed. With `?synchronous=normal` a "
        "power cut may take the newest commits."
    ),
    order="claims by priority, then by id. The log is the order of the commits.",
    unknown_outcome=(
        "the outcome is unknown only if the disk fails during the commit. The error then says so: "
        "repeat the same call, it takes effect once."
    ),
    clock="the host's. If that is set back, the store's time goes on: it never goes back or stands still.",
    takeover=(
        "within half a second after kill -9: a lock of the operating system ends with the process. A frozen process "
        "keeps its lease. On systems other than Linux only the lease counts."
    ),
    wake_up="within milliseconds, from any process of the host.",
    limits="one host, one writer at a time; a call behind a frozen writer fails after 30 s and names its pid.",
    not_for="network file systems, several hosts, use across `fork()`.",
    in_short={"survives_power_loss": "yes, by SQLite's own promise (not tested)"},
    shown_by={
        "durability": (
            "lab/test_disk.py::test_a_commit_that_cannot_be_synced_is_an_error_and_may_be_repeated",
            "sqlite/test_group_commit.py::test_sixty_four_publishers_share_a_few_commits",
        ),
        "lost": (
            f"{CRASHES}[sqlite]",
            "sqlite/test_foreign_close.py::test_what_is_acknowledged_after_the_application_read_the_file_is_kept",
            "sqlite/test_doctor.py::test_the_doctor_finds_no_problem_in_a_store_that_durabus_made",
            "not tested: a power cut",
        ),
        "order": (
            f"{SUITE}::test_larger_priority_goes_first",
            f"{SUITE}::test_events_come_in_the_order_they_were_published",
            f"{SUITE}::test_a_reader_misses_nothing_while_threads_write",
        ),
        "unknown_outcome": (
            "sqlite/test_disk.py::test_a_write_that_the_system_refuses_is_taken_back_and_works_later",
            "lab/test_disk.py::test_a_commit_that_cannot_be_synced_is_an_error_and_may_be_repeated",
        ),
        "clock": (
            "sqlite/test_clock.py::test_leases_end_and_retries_become_due_while_the_clock_is_behind",
            "sqlite/test_clock.py::test_the_log_is_never_stamped_backwards",
        ),
        "takeover": (
            "processes/test_takeover.py::test_the_events_of_a_killed_process_are_taken_over_at_once[sqlite]",
            "processes/test_takeover.py::test_a_frozen_process_keeps_its_claims[sqlite]",
            "processes/test_takeover.py::test_a_forked_child_does_not_keep_the_presence_of_its_parent[sqlite]",
        ),
        "wake_up": ("sqlite/test_wakeup.py::test_a_publish_in_another_process_wakes_the_bus_it_is_for",),
        "limits": (
            "sqlite/test_disk.py::test_callers_do_not_wait_for_ever_for_a_frozen_lock_holder",
            "sqlite/test_frozen_holder.py::test_every_write_gives_up_and_reads_go_on",
        ),
        "not_for": (
            "sqlite/test_doctor.py::test_a_file_on_a_network_is_an_error",
            "sqlite/test_fork.py::test_a_child_that_uses_the_parents_store_gets_a_clear_error",
        ),
    },
)
