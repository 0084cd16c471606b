"""The worker runs the handlers of one bus in this process.

The life of an event:

1. publish: ``bus/publisher.py`` stores what was emitted in one turn of the event loop as one batch.
2. wake: ``poller.py`` turns the store's hints, or the end of the poll interval, into ``should_claim``.
3. claim: ``worker.py`` asks the store for as many events as it has free slots, in the call that settles others.
4. hold: ``claim_table.py`` keeps the claims, and ``heartbeat.py`` renews their leases from a thread of its own. In the
   same thread, ``process_watch.py`` takes back the claims of processes that have ended.
5. start: ``slots.py`` gives each claimed event (``claimed_event.py``) to a task; a handler that waits yields its slot.
6. run: ``executor.py`` runs the event and turns whatever happens into one settlement.
7. route: ``dispatcher.py`` picks the handlers; ``missing_handlers.py`` knows those that only other nodes have.
8. call: ``attempt.py`` runs them one by one or side by side, and ``execution.py`` calls each, within its timeout.
   ``progress.py`` writes successes and the values of ``steps.py`` to the store before the event ends.
9. children: ``children/`` lets a parent complete after the events that its handlers emitted.
10. settle: ``completer.py`` completes, fails or releases finished events in batches. A failed event begins again at 2;
    one without attempts left is a dead letter.

``draining.py`` ends the worker: it finishes what runs, and gives back the rest.
"""
