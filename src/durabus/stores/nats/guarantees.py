"""What the NATS store promises."""

from durabus.store.guarantees import CRASHES, Guarantees
from durabus.stores.replicated_log.options import SHOWN_BY

SUITE = "conformance/test_nats.py::TestNatsStore"
BROKER = "nats/test_broker.py::TestNats"
DAMAGE = "nats/test_damage.py::TestNatsDamage"

GUARANTEES = Guarantees(
    title="NATS",
    durability="in a JetStream stream: with one server in its page cache, with `replicas=3` on a majority of servers.",
    lost=(
        "nothing by kill -9 of clients or server. A power cut of all copies loses up to the server's `sync_interval` "
        "(2 minutes unless set; `always` loses nothing). "
        "A log that is damaged, shortened or created again stops the nodes that notice it (`DamagedLogError`)."
    ),
    order="one log for all buses of a prefix: its order decides every claim, by priority, then by id.",
    unknown_outcome=(
        "the store sends the record again until `timeout`; nodes recognise a repeat by its sender and number. Then "
        "`StoreUnavailableError`: repeat the call, which takes effect once."
    ),
    clock="the time that the server wrote on each record, never backwards.",
    takeover=(
        "within three seconds after kill -9. A process that is frozen or cut off for 2.5 s is taken over too: its "
        "handler may overlap with the next one, and fences refuse its writes."
    ),
    wake_up="at once: every node reads the log.",
    limits=(
        "every node has all live events and `max_history` COMPLETED ones of each bus in memory; events up to the "
        "server's `max_payload`; one log's throughput for all buses of a prefix."
    ),
    not_for="histories larger than memory, caller transactions, leases below half a second.",
    shown_by={
        "durability": (
            "nats/test_doctor.py::test_a_server_alone_is_warned_about",
            f"{BROKER}::test_a_stream_that_would_lose_records_is_refused",
            "not tested: a cluster",
        ),
        "lost": (
            f"{CRASHES}[nats]",
            f"{BROKER}::test_nothing_is_lost_while_the_server_is_killed_and_restarted",
            f"{DAMAGE}::test_garbage_with_our_header_stops_every_node",
            f"{DAMAGE}::test_a_log_that_was_made_anew_stops_the_node",
            "not tested: a power cut",
        ),
        "order": (
            f"{SUITE}::test_larger_priority_goes_first",
            f"{SUITE}::test_events_come_in_the_order_they_were_published",
            "replicated_log/test_replicas.py::test_two_nodes_never_hold_the_same_event",
        ),
        "unknown_outcome": (
            "nats/test_troubles.py::TestNatsTroubles::test_a_network_that_is_cut_between_request_and_reply_does_nothing_twice",
            *SHOWN_BY["unknown_outcome"],
        ),
        "clock": (f"{BROKER}::test_a_lease_ends_by_the_brokers_clock_and_its_holder_is_refused",),
        "takeover": (
            "processes/test_takeover.py::test_the_events_of_a_killed_process_are_taken_over_at_once[nats]",
            f"{SUITE}::test_the_fence_decides_if_the_process_was_wrongly_taken_for_dead",
        ),
        "wake_up": (f"{SUITE}::test_a_publish_wakes_waiting_workers",),
        "limits": (
            *SHOWN_BY["limits"],
            f"{BROKER}::test_a_full_stream_is_reported_at_once",
        ),
        "not_for": (
            f"{SUITE}::test_events_become_claimable_with_the_callers_commit",
            "docs/test_guarantees.py::test_a_lease_that_a_store_cannot_judge_is_refused[nats]",
        ),
    },
)
