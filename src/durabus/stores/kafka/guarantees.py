"""What the Kafka store promises."""

from durabus.store.guarantees import CRASHES, Guarantees
from durabus.stores.replicated_log.options import SHOWN_BY

SUITE = "conformance/test_kafka.py::TestKafkaStore"
BROKER = "kafka/test_broker.py::TestKafka"
DAMAGE = "kafka/test_damage.py::TestKafkaDamage"

GUARANTEES = Guarantees(
    title="Kafka",
    durability=(
        "acknowledged by all replicas in sync (`acks=all`, idempotent producer): with one broker in its page cache."
    ),
    lost=(
        "nothing by kill -9 of clients or broker. With `replication=1` a power cut loses the newest records; with 3 "
        "and `min.insync.replicas=2` it loses nothing, unless it hits all copies at once. "
        "A log that is damaged, shortened or created again stops the nodes that notice it (`DamagedLogError`)."
    ),
    order="one log for all buses of a prefix (one partition): its order decides every claim, by priority, then by id.",
    unknown_outcome=(
        "the store sends the record again until `timeout`; nodes recognise a repeat by its sender and number. Then "
        "`StoreUnavailableError`: repeat the call, which takes effect once."
    ),
    clock="the time that the broker wrote on each record (`LogAppendTime`), never backwards.",
    takeover=(
        "within three seconds after kill -9. A process that is frozen or cut off for 2.5 s is taken over too: its "
        "handler may overlap with the next one, and fences refuse its writes."
    ),
    wake_up="at once: every node reads the log.",
    limits=(
        "every node has all live events and `max_history` COMPLETED ones of each bus in memory; records of 8 MiB; one"
        " partition's throughput for all buses of a prefix."
    ),
    not_for="histories larger than memory, caller transactions, leases below a second.",
    shown_by={
        "durability": (
            "kafka/test_doctor.py::test_a_broker_alone_is_warned_about_and_bad_settings_are_errors",
            f"{BROKER}::test_a_topic_that_would_lose_or_bend_records_is_refused",
            "not tested: a cluster",
        ),
        "lost": (
            f"{CRASHES}[kafka]",
            f"{BROKER}::test_nothing_is_lost_while_the_server_is_killed_and_restarted",
            f"{DAMAGE}::test_garbage_with_our_header_stops_every_node",
            f"{DAMAGE}::test_a_log_that_was_made_anew_stops_the_node",
            "not tested: a power cut",
        ),
        "order": (
            f"{SUITE}::test_larger_priority_goes_first",
            f"{SUITE}::test_events_come_in_the_order_they_were_published",
            f"{BROKER}::test_a_topic_with_several_partitions_is_refused",
        ),
        "unknown_outcome": (
            "kafka/test_troubles.py::TestKafkaTroubles::test_a_network_that_is_cut_between_request_and_reply_does_nothing_twice",
            *SHOWN_BY["unknown_outcome"],
        ),
        "clock": (f"{BROKER}::test_a_lease_ends_by_the_brokers_clock_and_its_holder_is_refused",),
        "takeover": (
            "processes/test_takeover.py::test_the_events_of_a_killed_process_are_taken_over_at_once[kafka]",
            f"{SUITE}::test_the_fence_decides_if_the_process_was_wrongly_taken_for_dead",
        ),
        "wake_up": (f"{SUITE}::test_a_publish_wakes_waiting_workers",),
        "limits": SHOWN_BY["limits"],
        "not_for": (
            f"{SUITE}::test_events_become_claimable_with_the_callers_commit",
            "docs/test_guarantees.py::test_a_lease_that_a_store_cannot_judge_is_refused[kafka]",
        ),
    },
)
