"""Stores on a simulated log."""

from tests.replicated_log.simulated_log import SimulatedLog, SimulatedTransport, Trouble

from durabus.clock import Clock
from durabus.store.features import Features
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.store import ReplicatedLogStore

FEATURES = Features(
    scheme="simulated",
    survives_process_kill=True,
    survives_power_loss=False,
    shared_between_processes=True,
    caller_transactions=False,
    manual_clock=True,
    ordering_keys=True,
    claims_by_event_id=True,
)


def simulated_store(
    log: SimulatedLog, *, clock: Clock | None = None, trouble: Trouble | None = None, options: Options | None = None
) -> ReplicatedLogStore:
    return ReplicatedLogStore(SimulatedTransport(log, trouble), options or Options(), FEATURES, clock)
