"""Batch handlers, requests, and what the store hears of handlers before their event ends."""

from tests.mutants.mutant import Mutant

BATCHES = "tests/runtime/test_batches.py::test_"
KEPT = "tests/runtime/test_kept_results.py::test_"
EXECUTION = "tests/worker/test_execution.py::test_"
REQUESTS = "tests/runtime/test_requests.py::test_"

ANSWERS = (
    Mutant(
        "batch: a verdict on a foreign event",
        "worker/batches.py",
        "        if foreign:",
        "        if False:",
        f"{BATCHES}a_foreign_event_or_another_return_value_fails_the_batch_with_a_clear_error[memory-raise]",
        "An error under a wrong id is dropped, and its event completes.",
    ),
    Mutant(
        "batch: a child of an event that has left",
        "worker/batch.py",
        "        if member.has_left:",
        "        if False:",
        f"{BATCHES}a_lost_claim_leaves_the_batch_and_the_others_go_on[memory]",
        "A child gets the parent that runs in that slot now.",
    ),
    Mutant(
        "batch: events that wait use no slot",
        "worker/batches.py",
        "        self._progress.yield_slot()",
        "        pass",
        f"{BATCHES}events_that_wait_for_their_batch_use_no_slot[memory]",
        "A batch larger than the concurrency never fills.",
    ),
    Mutant(
        "batch: the breaker counts a call",
        "worker/batches.py",
        "            breaker.failed(batch)",
        "            [breaker.failed(member.event.id) for member in self.members]",
        f"{BATCHES}the_breaker_counts_a_batch_once[memory]",
        "One failed call stops a healthy handler.",
    ),
    Mutant(
        "batch: a shutdown begins what waits",
        "worker/batches.py",
        "            if hurries:",
        "            if False:",
        f"{BATCHES}a_shutdown_runs_the_batch_that_waits[memory]",
        "A shutdown waits for a batch that can never fill.",
    ),
    Mutant(
        "request: nobody begins it after its time",
        "bus/requests.py",
        '        options.setdefault("expires", limit)',
        "        pass",
        f"{REQUESTS}no_worker_begins_a_request_after_its_time[memory]",
        "A handler has effects for a request whose caller has given up.",
    ),
    Mutant(
        "kept results: a write that failed is repeated",
        "worker/progress.py",
        "                    self._timer = loop.call_later(pause,",
        "                    loop.call_later(pause, lambda *_: None,",
        f"{KEPT}a_success_that_the_store_refused_is_written_again_while_the_next_handler_runs[memory]",
        "After a short outage, a kill repeats a handler that succeeded long ago.",
    ),
    Mutant(
        "kept results: none is written after the end",
        "worker/progress.py",
        "            elif not self.is_over:",
        "            elif True:",
        f"{KEPT}nothing_is_written_again_after_the_event_has_ended[memory]",
        "The store is called for events that have ended.",
    ),
    Mutant(
        "snooze: an instant by the clock of the store",
        "worker/execution.py",
        "_delay_of(one, (began or 0.0) + milliseconds / 1000)",
        "_delay_of(one, __import__('time').time())",
        f"{EXECUTION}a_snooze_until_an_instant_is_a_delay_by_the_clock_of_the_store",
        "A handler on a host whose clock is wrong snoozes too long, or not at all.",
    ),
)
