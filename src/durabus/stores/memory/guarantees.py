"""What the memory store promises, and what ``durabus doctor`` says about it."""

from __future__ import annotations

from durabus.store.checks import Finding
from durabus.store.guarantees import Guarantees

SUITE = "conformance/test_memory.py::TestMemoryStore"

GUARANTEES = Guarantees(
    title="memory",
    durability="in the memory of this process.",
    lost="everything, when the process ends.",
    order="claims by priority, then by id. The log is the order of the calls.",
    unknown_outcome="does not happen: a call returns or raises before another call sees its effect.",
    clock="the host's.",
    takeover="never: the events end with the process.",
    wake_up="at once, within the process.",
    limits="memory; the store keeps `max_history` COMPLETED events of a bus (default 10,000).",
    not_for="anything that must outlive the process.",
    shown_by={
        "durability": ("not tested: nothing is promised",),
        "lost": ("not tested: nothing is promised",),
        "order": (
            f"{SUITE}::test_larger_priority_goes_first",
            f"{SUITE}::test_events_come_in_the_order_they_were_published",
            f"{SUITE}::test_pages_give_every_entry_once_and_in_order",
        ),
        "unknown_outcome": (f"{SUITE}::test_a_cancelled_batch_is_stored_whole_or_not_at_all",),
        "clock": (
            "conformance/test_real_time.py::TestMemoryStoreInRealTime::test_another_worker_takes_over_when_the_lease_is_over",
        ),
        "takeover": (f"{SUITE}::test_a_store_that_does_not_see_the_end_of_processes_says_so",),
        "wake_up": (f"{SUITE}::test_a_publish_wakes_waiting_workers",),
        "limits": ("docs/test_guarantees.py::test_the_memory_store_keeps_as_many_completed_events_as_configured",),
        "not_for": ("not tested: nothing is promised",),
    },
)


async def examine(_url: str) -> list[Finding]:
    """Return the warning that holds for every memory store."""
    advice = "everything is gone when this process ends: use sqlite:/// for events that must survive"
    return [Finding(level="warning", setting="storage", value="memory", advice=advice)]
