"""What the sharded store promises, and what ``durabus doctor`` says about its shards."""

from __future__ import annotations

import msgspec

from durabus.store.checks import Finding
from durabus.store.checks import examine as examine_shard
from durabus.store.guarantees import Guarantees
from durabus.stores.sharded.store import parse_url

SUITE = "conformance/test_sharded.py::TestMemoryShards"
SHARDS = "sharded/test_store.py"

GUARANTEES = Guarantees(
    title="sharded",
    durability=(
        "where the event's shard keeps it: see the guarantees of that store. The shard is the `event_id`, a UUID, read "
        "as a number, modulo N; `id % N` gives the same shard."
    ),
    lost=(
        "what its shards lose. While a shard is down its events wait and lists and counts raise; the events of the "
        "others are worked on."
    ),
    order=(
        "of ids, claims and log only among the events of one shard. A reader of the log gets every entry once. Entries "
        "of one event come in order, entries of different shards only roughly by time."
    ),
    unknown_outcome=(
        "as on the shard. A batch that spans shards may be done in part (`one_order=False`): it raises, and a repeat "
        "does the rest, once."
    ),
    clock="that of the event's shard; `now` is the first one's.",
    takeover="as its shards: each sees the end of a process for itself.",
    wake_up="by the first shard that reports new work.",
    limits=(
        "2 to 16 shards; their number and order are part of every id, written into each shard, and cannot be changed; "
        "a claim asks every shard."
    ),
    not_for=(
        "serial modes, ordering keys, idempotency keys (give an `event_id` made from the key) and caller transactions, "
        "all of which are refused; brokers as shards."
    ),
    in_short={
        "survives_process_kill": "as its shards",
        "survives_power_loss": "as its shards",
        "shared_between_processes": "as its shards",
    },
    shown_by={
        "durability": (
            f"{SHARDS}::test_an_event_is_on_the_shard_that_its_id_names",
            "conformance/test_sharded.py::TestSQLiteShards::test_everything_is_as_it_was_after_a_restart",
        ),
        "lost": (f"{SHARDS}::test_events_of_other_shards_are_claimed_while_one_is_down",),
        "order": (
            f"{SHARDS}::test_ids_claims_and_log_of_one_shard_have_one_order",
            f"{SHARDS}::test_a_reader_gets_every_entry_once_while_others_write",
            f"{SHARDS}::test_the_log_is_in_order_of_time_while_no_writer_is_at_work",
        ),
        "unknown_outcome": (f"{SHARDS}::test_a_batch_that_fails_half_way_is_completed_by_a_repeat",),
        "clock": (f"{SUITE}::test_the_stores_clock_is_the_one_that_counts",),
        "takeover": (f"{SUITE}::test_the_events_of_an_ended_process_are_taken_back",),
        "wake_up": (f"{SUITE}::test_a_publish_wakes_waiting_workers",),
        "limits": (
            f"{SHARDS}::test_shards_in_another_order_or_number_are_refused",
            f"{SHARDS}::test_a_url_that_cannot_work_is_refused_at_once",
            f"{SHARDS}::test_a_bus_serves_all_shards",
        ),
        "not_for": (
            f"{SHARDS}::test_serial_modes_are_refused",
            f"{SHARDS}::test_keys_are_refused_with_what_to_do_instead",
        ),
    },
)


async def examine(url: str) -> list[Finding]:
    """Return the findings of all shards, each with the number of its shard."""
    return [
        msgspec.structs.replace(finding, setting=f"shard {number}: {finding.setting}")
        for number, part in enumerate(parse_url(url))
        for finding in await examine_shard(part)
    ]
