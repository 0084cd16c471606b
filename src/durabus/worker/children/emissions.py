"""What a handler emits: it belongs to the success of the handler, and has an id that a retry finds again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.errors import ConfigurationError, LeaseLost
from durabus.model.event import Event, NewEvent
from durabus.store.contract import EventStore
from durabus.worker.children.children import Child


class EmittingCall(msgspec.Struct, eq=False):
    """One call of a handler for one event, or one step of it. Code inside it finds it in ``RUN``.

    What it emits and does not await is held here until the call has succeeded. A call that fails drops it.
    """

    name: str
    """The id of the handler, and the name of the step if it is one."""
    event: Event
    store: EventStore | None
    """The store that can store children together with the success; None if it cannot."""
    held: dict[Child, None] | None = None
    """In the order of the calls. One more child, or one less, costs the same however many there are."""
    is_over: bool = False
    _ordinals: Counter[tuple[str, str, str]] | None = None
    _keys: dict[tuple[str, str], tuple[str, str]] | None = None
    """Type and payload of the children that have a key, by their bus and key."""

    def ended(self) -> LeaseLost:
        """Return the error of what a task or thread begins after the call has ended. A retry would do it once more."""
        return LeaseLost(
            self.event.event_id,
            f"attempt {self.event.attempts} of handler {self.name} has ended, and a task or thread that it left behind "
            "goes on. Await it in the handler, or emit with parent_id=None what shall be an event of its own",
        )

    def identify(self, new: NewEvent, key: str | None) -> NewEvent:
        """Return the child with the id that it has in every attempt of this generation of the event.

        The id is made of the event, the handler, the bus of the child and ``key``; without a key, of its type and
        payload and how many equal ones came before it. It has the form of a UUIDv7 with the time of the parent's.
        """
        what = self._without_key(new) if key is None else self._with_key(new, key)
        parts = [self.event.event_id, str(self.event.generation), self.name, new.bus, *what]
        bits = int.from_bytes(blake2b(msgspec.json.encode(parts), digest_size=10).digest())
        low = 1 << 63 | bits >> 12 & (1 << 62) - 1
        time = self.event.event_id[:13]
        event_id = f"{time}-7{bits & 0xFFF:03x}-{low >> 48:04x}-{low & (1 << 48) - 1:012x}"
        return replace(new, event_id=event_id)

    def _with_key(self, new: NewEvent, key: str) -> list[str]:
        if self._keys is None:
            self._keys = {}
        before = self._keys.setdefault((new.bus, key), (new.type, new.payload_json))
        if before != (new.type, new.payload_json):
            raise ConfigurationError(
                f"key={key!r} names two children of one attempt: {before[0]} with {before[1]:.80} and {new.type} with "
                f"{new.payload_json:.80}. The second would not be stored: give each child a key of its own"
            )
        return ["key", key]

    def _without_key(self, new: NewEvent) -> list[str]:
        if self._ordinals is None:
            self._ordinals = Counter()
        alike = (new.bus, new.type, new.payload_json)
        self._ordinals[alike] += 1
        return [new.type, new.payload_json, str(self._ordinals[alike])]

    def hold(self, child: Child) -> None:
        """Keep a child until the call has succeeded."""
        if self.held is None:
            self.held = {}
        self.held[child] = None

    def let_go(self, child: Child) -> None:
        """The child is stored now: its handler waits for it."""
        if self.held is not None:
            self.held.pop(child, None)

    async def succeed(self) -> list[Child]:
        """Return the children to store together with the success. Others, on another store, are stored first.

        Raises if a child is refused, or if the bus of some has no room for them.
        """
        held, self.held, self.is_over = self.held or {}, None, True
        together: list[Child] = []
        try:
            for child in held:
                if child.store is self.store:
                    together.append(child)
                else:
                    await child.stored()
            rooms = Counter(child.room for child in together)
            for room, count in rooms.items():
                if room is not None:
                    await room.admit(count)
        except BaseException:
            _drop(together)
            raise
        return together

    def fail(self) -> None:
        """Drop what is held."""
        held, self.held, self.is_over = self.held, None, True
        if held:
            _drop(held)


def is_alone(options: Mapping[str, Any]) -> bool:
    """Whether ``options`` ask for an event of its own, which belongs to no handler."""
    return "parent_id" in options and options["parent_id"] is None


def _drop(children: Iterable[Child]) -> None:
    for child in children:
        if not child.is_stored:
            child.drop()


RUN: ContextVar[EmittingCall | None] = ContextVar("durabus_handler_run", default=None)


@contextmanager
def emitting(run: EmittingCall) -> Iterator[EmittingCall]:
    """Inside this block, what is emitted belongs to ``run``, which drops it if the block raises."""
    outer = RUN.get()
    RUN.set(run)
    try:
        yield run
    except BaseException:
        run.fail()
        raise
    finally:
        RUN.set(outer)
