"""Runs one random sequence of commands on two stores, and compares every reply.

A sequence consists of ``SideStep`` values. A step names its claim, event or lock by a number, which counts those that
exist when the step runs. So any part of a sequence is a sequence, and a failing one can be shortened.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from durabus.clock import ManualClock
from durabus.errors import DurabusError
from durabus.model.claim import LOST
from durabus.model.query import EventQuery
from durabus.store.contract import EventStore
from durabus.store.processes import PRESENT_FOR
from durabus.testing.conformance.commands import VERBS
from durabus.testing.conformance.sides import LEASE, Side, SideStep


class Difference(AssertionError):  # noqa: N818  (reads as the sentence it is)
    """Two stores replied differently. The message has the steps so far and both replies."""


def random_steps(seed: int, length: int) -> list[SideStep]:
    """Return the sequence of a seed. It is the same on every machine."""
    chance = random.Random(seed)
    verbs = ["add", "add", "claim", *chance.choices(list(VERBS), [w for _, w in VERBS.values()], k=length)][:length]
    return [SideStep(verb, chance.randrange(60), chance.randrange(60), chance.randrange(60)) for verb in verbs]


async def compare(
    left: EventStore, right: EventStore, clocks: Sequence[ManualClock], steps: Sequence[SideStep]
) -> None:
    """Run ``steps`` on two new stores. Raises ``Difference`` at the first reply that differs."""
    keys = left.features.ordering_keys and right.features.ordering_keys
    names = left.features.claims_by_event_id and right.features.claims_by_event_id
    children = left.features.children and right.features.children
    waits = left.features.waits and right.features.waits
    sides = tuple(Side(one, keys=keys, names=names, children=children, waits=waits) for one in (left, right))
    for number, step in enumerate(steps):
        if step.verb == "advance":
            for clock in clocks:
                clock.advance((1.0, 2.0, 4.0, LEASE)[step.a % 4])
        if step.verb == "end process":
            for clock in clocks:  # on every store, a process that is silent for so long has ended
                clock.advance(PRESENT_FOR)
        answers = [await _answer(side, step) for side in sides]
        if answers[0] != answers[1]:
            raise Difference(_story(steps[: number + 1], sides, answers))
    finals = [await everything(side) for side in sides]
    for part, one, two in zip(finals[0], finals[0].values(), finals[1].values(), strict=True):
        if one != two:
            raise Difference(
                _story(steps, sides, [_first_difference(part, one, two, 0), _first_difference(part, one, two, 1)])
            )


async def everything(side: Side) -> dict[str, list[Any]]:
    """Return the whole content of a store, without what can differ between stores."""
    store, events, before = side.store, [], None
    while True:
        page = await store.find(EventQuery(before_id=before, limit=50))
        events += page.events
        before = page.next_before_id
        if before is None:
            break
    log = (await store.read_log(limit=10_000)).entries
    return {
        "events": side.plain(events),
        "results": [side.plain(await store.list_results(event.id)) for event in events],
        "log": _in_one_order(side.plain(log)),
        "locks": side.plain(await store.list_locks()),
        "dead letters": side.plain((await store.list_dead_letters()).events),
        "counts": [side.plain(await store.counts())],
        "active buses": await store.active_buses(),
    }


def _in_one_order(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the log. Entries of leases that ended together are sorted, because the contract gives them no order."""
    ordered: list[dict[str, Any]] = []
    for (_, lost), group in groupby(log, lambda entry: (entry["at_ts"], _is_lost(entry))):
        entries = list(group)
        ordered += sorted(entries, key=lambda entry: str(entry["event_id"])) if lost else entries
    return ordered


def _is_lost(entry: dict[str, Any]) -> bool:
    return str(entry["error"]).startswith(LOST)


async def _answer(side: Side, step: SideStep) -> Any:
    try:
        return side.plain(await VERBS[step.verb][0](side, step))
    except DurabusError as error:
        return ["raised", type(error).__name__]


def _first_difference(part: str, one: list[Any], two: list[Any], which: int) -> str:
    for number, pair in enumerate(zip(one, two, strict=False)):
        if pair[0] != pair[1]:
            return f"{part}[{number}] = {pair[which]}"
    return f"{part}: {(len(one), len(two))[which]} of them; the shorter is the beginning of the longer"


def _story(steps: Sequence[SideStep], sides: Sequence[Side], answers: Sequence[Any]) -> str:
    told = "\n".join(f"  {number:3} {step}" for number, step in enumerate(steps))
    left, right = (type(side.store).__name__ for side in sides)
    return f"after\n{told}\n{left} answered\n  {answers[0]}\n{right} answered\n  {answers[1]}"


__all__ = ["Difference", "SideStep", "compare", "everything", "random_steps"]
