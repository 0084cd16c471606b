"""The scenario of a run: plain data, made from a seed. A failing scenario can be reduced piece by piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.model.statuses import EventMode, HandlerMode
from durabus.testing.simulation.network import Fault

CHAOS = 6
"""The number of leases that the faults last."""
CRASH, FREEZE, SHUTDOWN, STORE_RESTART = "crash", "freeze", "shutdown", "store restart"
CUT_OFF = "cut off"
BATCH_HANDLER = "batch"
GROUPS = 3
"""The number of groups that the events belong to. A handler can wait for the next event of a group."""
FIRST_ASKED = 1001
"""The number of the first requested event."""
MAX_TRIES = 150
"""Maximum number of smaller scenarios to try while reducing a failing one."""


class Disturbance(msgspec.Struct, frozen=True):
    """The director disturbs the ``target``-th process at an instant, and lets it recover ``seconds`` later.

    Targets count the workers first, then the publishers, the reader of the log, the processes that use locks, the
    administrator, and the process that makes requests.
    """

    at: float
    what: str
    target: int
    seconds: float


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet, its work, and its faults."""

    seed: int
    store: str = "memory"
    workers: int
    publishers: int
    events: tuple[int, ...]
    """The numbers of the events. The plan of an event depends only on its number and the seed."""
    lease: float
    concurrency: int
    mode: EventMode
    keys: int
    """The number of ordering keys that the events share. With 0, no event has one."""
    handlers: int
    handler_mode: HandlerMode
    split: bool
    """Whether each worker has only one of the handlers, so that an event needs several workers."""
    children: bool
    awaited: bool
    """Whether handlers wait for the end of their children."""
    queue: bool
    """Whether workers use ``EventQueue`` instead of a bus."""
    lockers: int
    """The number of processes that work under a lock, one at a time."""
    max_retries: int
    base_delay: float
    requeues: int
    faults: tuple[Fault, ...]
    often: float
    """The share of the calls that have a fault."""
    disturbances: tuple[Disturbance, ...]
    skewed: bool
    steps: int
    """The number of durable steps that a handler has at most."""
    sleeps: bool
    """Whether some handlers sleep between their steps, or snooze."""
    strict: bool
    """Whether the store learns of a success before the next handler begins."""
    cancels: int
    """The number of events that the administrator cancels."""
    waits: bool = False
    """Whether some handlers wait for another event."""
    batch: int = 0
    """The maximum size of the batches of a further handler; 0 if there is none."""
    presence: bool = False
    """Whether the store sees that a process has ended. It may be wrong about one that is cut off, so that handlers
    overlap. The checker knows this of events, but not of locks and of handlers with claims of their own."""
    served: bool = False
    """Whether a server looks for expired claims, as it does beside the workers. It claims nothing itself, so the result
    of a slow worker often arrives before the event's next claim."""
    requests: int = 0
    """The number of events whose value a further process requests."""
    expires: bool = False
    """Whether some events expire."""
    keyed: bool = False
    """Whether children have a ``key``. Then each attempt gives its child another payload."""

    @property
    def asked(self) -> range:
        """The numbers of the requested events."""
        return range(FIRST_ASKED, FIRST_ASKED + self.requests)

    @property
    def chaos_ends(self) -> float:
        """The time at which all faults end."""
        return CHAOS * self.lease

    @property
    def handler_names(self) -> tuple[str, ...]:
        """The ids of the handlers that the workers have together."""
        names = tuple(f"handler-{number}" for number in range(self.handlers))
        return (*names, BATCH_HANDLER) if self.batch else names


class PlannedWait(msgspec.Struct, frozen=True):
    """A handler waits for an event, at most ``timeout`` seconds."""

    type: str
    where: dict[str, int]
    timeout: float


class EventPlan(msgspec.Struct, frozen=True):
    """One event, and what its handlers do in each attempt."""

    number: int
    at: float
    publisher: int
    delay: float
    ordering_key: str | None
    idempotency_key: str | None
    max_attempts: int | None
    outcomes: tuple[str, ...]
    """``done``, ``raised``, ``unrecoverable`` or ``timeout`` for each attempt. The last holds for all later ones."""
    seconds: tuple[float, ...]
    child: bool
    given_up: bool
    """Whether the publisher gives up if the first try fails."""
    steps: tuple[float, ...]
    """The seconds that each durable step takes."""
    sleep: float
    """The seconds that the handler sleeps after its first step; 0 if it does not sleep."""
    snooze: float
    """The seconds for which the first claim of the event is snoozed; 0 if it is not."""
    wait: PlannedWait | None
    expires: float | None
    """The seconds after it is due from which on no worker begins the event."""
    patience: float
    """The seconds that a request of the event waits."""

    @property
    def group(self) -> int:
        """The group of the event: it is part of its payload."""
        return self.number % GROUPS


def make_scenario(seed: int, store: str = "memory") -> Scenario:
    """Return the scenario of a seed. Each one has only some of the faults: all at once would hide each other."""
    chance = random.Random(f"{seed}/scenario")
    lease = chance.choice((2.0, 3.0, 5.0))
    workers, publishers = chance.randint(2, 4), chance.randint(1, 2)
    queue = chance.random() < 0.12  # noqa: PLR2004
    mode = EventMode.PARALLEL if queue else chance.choice((*[EventMode.PARALLEL] * 4, EventMode.BUS_SERIAL))
    serial = mode is not EventMode.PARALLEL
    handlers = 1 if queue else chance.choice((1, 1, 2))
    children = not queue and chance.random() < 0.25  # noqa: PLR2004
    lockers = chance.choice((0, 2))
    processes = workers + publishers + 1 + lockers
    made = Scenario(
        seed=seed,
        store=store,
        workers=workers,
        publishers=publishers,
        events=tuple(range(1, chance.randint(3, 8 if serial else 18) + 1)),
        lease=lease,
        concurrency=chance.choice((1, 2, 4, 10)),
        mode=mode,
        keys=chance.choice((0, 0, 1, 2, 3)),
        handlers=handlers,
        handler_mode=chance.choice((HandlerMode.SERIAL, HandlerMode.PARALLEL)),
        split=handlers > 1 and chance.random() < 0.4,  # noqa: PLR2004
        children=children,
        awaited=children and chance.random() < 0.5,  # noqa: PLR2004
        queue=queue,
        lockers=lockers,
        max_retries=chance.randint(0, 4),
        base_delay=chance.choice((0.05, 0.5, 1.0)),
        requeues=chance.choice((0, 1, 3)),
        faults=tuple(fault for fault in Fault if chance.random() < 0.4),  # noqa: PLR2004
        often=chance.choice((0.02, 0.06, 0.15)),
        disturbances=_in_order(*_disturbances(chance, lease, processes), *_cuts(seed, lease, processes)),
        skewed=chance.random() < 0.7,  # noqa: PLR2004
        **_verbs(seed, queue=queue),
    )
    return _with_callers(_with_further_verbs(made), processes)


def _verbs(seed: int, *, queue: bool) -> dict[str, Any]:
    """Return the durable verbs of a scenario. They have their own numbers, so that the rest of a seed stays alike."""
    chance = random.Random(f"{seed}/verbs")
    verbs: dict[str, Any] = {
        "steps": chance.choice((0, 0, 1, 2, 3)),
        "sleeps": chance.random() < 0.3,  # noqa: PLR2004
        "strict": chance.random() < 0.4,  # noqa: PLR2004
        "cancels": chance.choice((0, 0, 1, 3)),
    }
    return verbs | ({"steps": 0, "sleeps": False, "strict": False} if queue else {})


def _with_further_verbs(made: Scenario) -> Scenario:
    """Add a server, and waits, batches and presence if it is not about a queue. They have their own numbers, too."""
    chance, serial = random.Random(f"{made.seed}/further verbs"), made.mode is not EventMode.PARALLEL
    made = replace(made, served=random.Random(f"{made.seed}/server").random() < 0.5)  # noqa: PLR2004
    if made.queue:
        return made
    return replace(
        made,
        waits=chance.random() < 0.35,  # noqa: PLR2004
        batch=chance.choice((0, 0, 0, 2, 5)) if not serial else 0,
        presence=chance.random() < 0.6 and not (serial or made.split or made.lockers),  # noqa: PLR2004
    )


def _with_callers(made: Scenario, processes: int) -> Scenario:
    """Add expiry, keys of children, and requests with faults of their process. They have their own numbers, too."""
    chance, lease = random.Random(f"{made.seed}/callers"), made.lease
    made = replace(made, expires=chance.random() < 0.3, keyed=made.children and chance.random() < 0.5)  # noqa: PLR2004
    if made.queue or chance.random() < 0.6:  # noqa: PLR2004
        return made
    kinds = (CRASH, FREEZE, CUT_OFF)
    faults = [
        Disturbance(chance.uniform(0.1, CHAOS * lease), chance.choice(kinds), processes + 1, chance.uniform(0.1, lease))
        for _ in range(chance.randint(0, 2))
    ]
    return replace(made, requests=chance.randint(1, 4), disturbances=_in_order(*made.disturbances, *faults))


def _in_order(*disturbances: Disturbance) -> tuple[Disturbance, ...]:
    return tuple(sorted(disturbances, key=lambda one: one.at))


def _cuts(seed: int, lease: float, processes: int) -> Iterator[Disturbance]:
    chance = random.Random(f"{seed}/cuts")
    for _ in range(chance.choice((0, 1, 2, 4, 6))):
        at, seconds = chance.uniform(0.1, (CHAOS - 1) * lease), chance.uniform(0.6, 2.0) * lease
        yield Disturbance(at, CUT_OFF, chance.randrange(processes), seconds)


def _disturbances(chance: random.Random, lease: float, processes: int) -> Iterator[Disturbance]:
    kinds = [what for what in (CRASH, CRASH, FREEZE, FREEZE, FREEZE, SHUTDOWN, STORE_RESTART) if chance.random() < 0.6]  # noqa: PLR2004
    many = chance.randint(0, 9) if kinds else 0
    for _ in range(many):
        what = chance.choice(kinds)
        seconds = {
            CRASH: chance.uniform(0.0, 2 * lease),
            FREEZE: chance.uniform(0.5, 2.5) * lease,
            SHUTDOWN: chance.uniform(0.0, lease),
            STORE_RESTART: chance.uniform(0.05, 1.2) * lease,
        }[what]
        yield Disturbance(chance.uniform(0.1, CHAOS * lease), what, chance.randrange(processes), seconds)


def plan_of(scenario: Scenario, number: int) -> EventPlan:
    """Return the plan of the event with this number."""
    chance, lease = random.Random(f"{scenario.seed}/event/{number}"), scenario.lease
    kind = chance.random()
    outcomes: tuple[str, ...] = ("done",)
    if kind < 0.22:  # noqa: PLR2004
        outcomes = (*["raised"] * chance.randint(1, 2), "done")
    elif kind < 0.28:  # noqa: PLR2004
        outcomes = ("unrecoverable",)
    elif kind < 0.34:  # noqa: PLR2004
        outcomes = ("raised",)
    elif kind < 0.38:  # noqa: PLR2004
        outcomes = ("timeout", "done")
    length = chance.choice((0.0, 0.1, 0.4, 0.8, 1.4))
    key = f"key-{chance.randrange(scenario.keys)}" if scenario.keys and chance.random() < 0.7 else None  # noqa: PLR2004
    may_emit = scenario.children and key is None and (outcomes == ("done",) or not scenario.awaited)
    return EventPlan(
        number=number,
        at=chance.uniform(0.0, (CHAOS - 2) * lease),
        publisher=chance.randrange(max(scenario.publishers, 1)),
        delay=chance.choice((0.0, 0.0, 0.0, lease)),
        ordering_key=key,
        idempotency_key=f"once-{number // 2}" if chance.random() < 0.15 else None,  # noqa: PLR2004
        max_attempts=chance.randint(1, 5) if chance.random() < 0.3 else None,  # noqa: PLR2004
        outcomes=outcomes,
        seconds=tuple(length * lease * chance.uniform(0.5, 1.5) for _ in range(3)),
        child=may_emit and chance.random() < 0.4,  # noqa: PLR2004
        given_up=chance.random() < 0.15,  # noqa: PLR2004
        **_verbs_of(scenario, number),
    )


def _verbs_of(scenario: Scenario, number: int) -> dict[str, Any]:
    chance, lease = random.Random(f"{scenario.seed}/verbs/{number}"), scenario.lease
    steps = tuple(chance.choice((0.0, 0.1, 0.5)) * lease for _ in range(chance.randint(0, scenario.steps)))
    kind = chance.random() if scenario.sleeps else 1.0
    return {
        "steps": steps,
        "sleep": chance.uniform(0.1, 1.0) * lease if kind < 0.4 else 0.0,  # noqa: PLR2004
        "snooze": chance.uniform(0.1, 1.0) * lease if 0.3 < kind < 0.6 else 0.0,  # noqa: PLR2004
        "wait": _wait_of(scenario, number) if scenario.waits else None,
        **_callers_of(scenario, number),
    }


def _callers_of(scenario: Scenario, number: int) -> dict[str, float | None]:
    """Return what the caller of an event wants: when the event expires, and how long a request waits."""
    chance, lease = random.Random(f"{scenario.seed}/callers/{number}"), scenario.lease
    expires = scenario.expires and chance.random() < 0.4  # noqa: PLR2004
    return {
        "expires": chance.uniform(0.1, 2.0) * lease if expires else None,
        "patience": chance.choice((0.5, 4.0, 12.0)) * lease,
    }


def _wait_of(scenario: Scenario, number: int) -> PlannedWait | None:
    """Return the wait of an event's handlers: for another event, for any of a group, or for any at all."""
    chance = random.Random(f"{scenario.seed}/wait/{number}")
    if chance.random() < 0.4:  # noqa: PLR2004
        return None
    other = chance.choice(scenario.events)
    where = chance.choice(({"number": other}, {"number": other}, {"group": other % GROUPS}, {}))
    types = ("sim.event", "sim.child") if scenario.children else ("sim.event",)
    return PlannedWait(chance.choice(types), where, chance.uniform(0.3, 3.0) * scenario.lease)


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return a smaller scenario that still fails. No single piece of it can be left out, unless the tries run out."""
    tries = MAX_TRIES
    smaller = True
    while smaller and tries > 0:
        smaller = False
        for candidate in _smaller(scenario):
            tries -= 1
            if fails(candidate):
                scenario, smaller = candidate, True
                break
            if tries == 0:
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with one piece less, the large pieces first."""
    for field in ("disturbances", "events", "faults"):
        whole = getattr(scenario, field)
        size = len(whole)
        while size > 1:
            size //= 2
            for start in range(0, len(whole), size):
                left = whole[:start] + whole[start + size :]
                if left or field != "events":
                    yield replace(scenario, **{field: left})
        if len(whole) == 1 and field != "events":
            yield replace(scenario, **{field: ()})
    plain = {
        "awaited": False,
        "children": False,
        "split": False,
        "keys": 0,
        "lockers": 0,
        "requeues": 0,
        "skewed": False,
        "steps": 0,
        "sleeps": False,
        "strict": False,
        "cancels": 0,
        "waits": False,
        "batch": 0,
        "presence": False,
        "served": False,
        "requests": 0,
        "expires": False,
        "keyed": False,
        "handlers": 1,
        "mode": EventMode.PARALLEL,
        "concurrency": 1,
        "publishers": 1,
    }
    for field, value in plain.items():
        if getattr(scenario, field) != value:
            yield replace(scenario, **{field: value})
    if scenario.workers > 1:
        yield replace(scenario, workers=scenario.workers - 1)
