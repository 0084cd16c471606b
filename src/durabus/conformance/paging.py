"""Proof of ``find``: conditions, order and pages."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from durabus.conformance.lab import BUS, OTHER_BUS, Lab, numbers
from durabus.model.event import new_event, new_event_id
from durabus.model.pattern import matches
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore

PARENT = new_event_id()
CONDITIONS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "nothing": ({}, [5, 4, 3, 2, 1, 0]),
    "bus": ({"bus": BUS}, [4, 3, 2, 1, 0]),
    "another bus": ({"bus": OTHER_BUS}, [5]),
    "unknown bus": ({"bus": "nowhere"}, []),
    "status": ({"statuses": (EventStatus.PROCESSING,)}, [0]),
    "statuses": ({"statuses": (EventStatus.PROCESSING, EventStatus.PENDING)}, [5, 4, 3, 2, 1, 0]),
    "no such status": ({"statuses": (EventStatus.FAILED,)}, []),
    "type": ({"type": "order.placed"}, [2, 0]),
    "type glob": ({"type": "order.*"}, [4, 2, 1, 0]),
    "type glob in front": ({"type": "*.placed"}, [5, 2, 0]),
    "type glob of three": ({"type": "order.*.paid"}, [3]),
    "every type": ({"type": "*"}, [5, 4, 3, 2, 1, 0]),
    "tag": ({"tags": ("eu",)}, [3, 1]),
    "any of the tags": ({"tags": ("eu", "us")}, [4, 3, 1]),
    "a tag that begins alike": ({"tags": ("e",)}, []),
    "parent": ({"parent_id": PARENT}, [3, 2]),
    "all together": ({"bus": BUS, "type": "order.*", "tags": ("eu", "us"), "statuses": (EventStatus.PENDING,)}, [4, 1]),
    "limit": ({"limit": 2}, [5, 4]),
    "bus and limit": ({"bus": BUS, "limit": 2}, [4, 3]),
}
GLOB_TRAPS = ["order_placed", "orderXplaced", "order.placed%", "ORDER.PLACED", "order.placed.late"]


async def _six_events(lab: Lab) -> None:
    kinds = ["order.placed", "order.paid", "order.placed", "order.eu.paid", "order.paid", "mail.placed"]
    tags = [[], ["eu"], [], ["eu", "vip"], ["us"], []]
    await lab.store.add_events(
        [
            new_event(
                kind,
                {"n": n},
                bus=OTHER_BUS if n == 5 else BUS,
                tags=tags[n],
                parent_id=PARENT if n in (2, 3) else None,
            )
            for n, kind in enumerate(kinds)
        ]
    )
    await lab.claim_one()


class PagingTests:
    """Events that meet conditions."""

    @pytest.mark.parametrize(("conditions", "expected"), CONDITIONS.values(), ids=CONDITIONS)
    async def test_events_that_meet_every_condition_are_found(
        self, lab: Lab, other_node: EventStore, conditions: dict[str, Any], expected: list[int]
    ) -> None:
        """Events that meet every condition of ``query``, newest ``id`` first, at most ``query.limit``."""
        await _six_events(lab)
        assert numbers((await other_node.find(EventQuery(**conditions))).events) == expected

    @pytest.mark.parametrize("kind", GLOB_TRAPS)
    async def test_a_pattern_is_a_glob_and_nothing_else(self, lab: Lab, kind: str) -> None:
        """A glob as in ``durabus.model.pattern``."""
        await lab.publish_one(kind=kind)
        for pattern in (
            kind,
            "*",
            "order.placed",
            "order.plac%",
            "order.*",
            "order_placed*",
            "order*",
            "[a-z]*",
            "order.*.*",
        ):
            found = (await lab.store.find(EventQuery(type=pattern))).events
            assert len(found) == matches(pattern, kind), pattern

    async def test_events_are_found_by_time_of_publishing(self, lab: Lab) -> None:
        """Every condition that is set must hold; results come newest ``id`` first."""
        events = []
        for _ in range(3):
            events.append(await lab.publish_one())
            await lab.advance(10 * lab.moment)
        half = 5 * lab.moment
        after_first, after_second = events[0].created_ts + half, events[1].created_ts + half
        later = await lab.store.find(EventQuery(created_from_ts=after_first))
        earlier = await lab.store.find(EventQuery(created_until_ts=after_second))
        middle = await lab.store.find(EventQuery(created_from_ts=after_first, created_until_ts=after_second))
        assert [event.id for event in later.events] == [events[2].id, events[1].id]
        assert [event.id for event in earlier.events] == [events[1].id, events[0].id]
        assert [event.id for event in middle.events] == [events[1].id]

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
    async def test_the_last_page_says_that_it_is_the_last(self, lab: Lab, limit: int) -> None:
        """One page. ``next_before_id`` is None on the last one."""
        await lab.publish(6)
        pages, before = [], None
        while True:
            page = await lab.store.find(EventQuery(limit=limit, before_id=before))
            pages.append(numbers(page.events))
            before = page.next_before_id
            if before is None:
                break
        assert [n for page in pages for n in page] == [5, 4, 3, 2, 1, 0]
        assert len(pages) == -(-6 // limit)

    async def test_no_event_is_one_empty_last_page(self, lab: Lab) -> None:
        """One page. ``next_before_id`` is None on the last one."""
        page = await lab.store.find(EventQuery())
        assert (page.events, page.next_before_id) == ([], None)

    async def test_pages_visit_each_event_once_while_others_publish_and_remove(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Following ``next_before_id`` visits each matching event that stays once, whatever is added meanwhile."""
        stay = await lab.publish(60)
        go = await lab.publish(20)
        seen: list[int] = []
        finished = anyio.Event()

        async def disturb() -> None:
            for event in go:
                await other_node.remove_event(event.id)
                await lab.publish(2)
                await anyio.lowlevel.checkpoint()
                if finished.is_set():
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(disturb)
            before = None
            while True:
                page = await lab.store.find(EventQuery(bus=BUS, limit=7, before_id=before))
                seen += [event.id for event in page.events]
                before = page.next_before_id
                await lab.publish(1)
                if before is None:
                    break
            finished.set()
        assert seen == sorted(set(seen), reverse=True)
        assert {event.id for event in stay} <= set(seen)

    async def test_a_page_that_begins_inside_a_filter_goes_on_with_it(self, lab: Lab) -> None:
        """Keyset page: only ids below this one."""
        await lab.publish(4, tags=["eu"])
        await lab.publish(4)
        first = await lab.store.find(EventQuery(tags=("eu",), limit=3))
        assert first.next_before_id is not None
        second = await lab.store.find(EventQuery(tags=("eu",), limit=3, before_id=first.next_before_id))
        assert numbers(first.events) + numbers(second.events) == [3, 2, 1, 0]
        assert second.next_before_id is None
