"""What a batch handler is subscribed with, and the context that it gets."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, get_args, get_origin

import msgspec

from durabus.errors import ConfigurationError, InvalidEventError, LeaseLost
from durabus.model.event import Event
from durabus.model.limits import Duration, check_batch, seconds
from durabus.model.payload import decode_as

DEFAULT_WITHIN = 0.1
"""Seconds that the first event of a batch waits for further ones, if the subscription does not say."""
_LISTS = (list, Sequence, Collection, Iterable)
_VERBS = ("step", "sleep", "sleep_until")


class BatchOptions(msgspec.Struct, frozen=True):
    """A batch begins when ``size`` events wait, or ``within`` seconds after the first of them."""

    size: int
    within: float


def batch_options(batch: int | None, within: Duration | None) -> BatchOptions | None:
    """Return the checked options of a batch handler; None for a handler of single events."""
    if batch is None:
        if within is not None:
            raise ConfigurationError(f"within={within!r} without batch: say how many events make a batch, as batch=100")
        return None
    return BatchOptions(check_batch(batch, "batch"), DEFAULT_WITHIN if within is None else seconds(within, "within"))


class BatchMember(Protocol):
    """An event of a batch that runs."""

    event: Event
    variables: contextvars.Context
    """The context variables of the slot in which the event waits."""

    @property
    def has_left(self) -> bool:
        """Whether its claim was lost or given back: what the handler does for it does not count any more."""
        ...


class BatchContext:
    """The second argument of a batch handler that takes one, async or plain.

    It has no durable steps and no sleep: both belong to the handler of one event.
    """

    def __init__(
        self, members: Sequence[BatchMember], worker_id: str, emitter: Callable[..., Any] | None = None
    ) -> None:
        self.events = tuple(member.event for member in members)
        """The events of the batch, in the order of the list that the handler gets."""
        self.worker_id = worker_id
        self._members: Mapping[str, BatchMember] = {member.event.event_id: member for member in members}
        self._emitter = emitter

    def fence_of(self, event: Event | str) -> int:
        """The number to pass to outside systems: they must refuse a smaller one than they have seen for this event."""
        return self._member(event).event.fence

    def attempt_of(self, event: Event | str) -> int:
        """The number of this attempt of the event; the first is 1."""
        return self._member(event).event.attempts

    def emit(self, event_type: str | object, payload: Any = None, *, parent: Event | str, **options: Any) -> Any:
        """Emit a child of one event of the batch as ``EventBus.emit`` does; returns its handle.

        Raises ``LeaseLost`` if the claim on that event was lost while the batch ran.
        """
        if self._emitter is None:
            raise ConfigurationError(f"ctx.emit({event_type!r}): this handler is not run by an EventBus")
        member = self._member(parent)
        if member.has_left:
            raise LeaseLost(member.event.event_id, "the event has left its batch")
        return member.variables.run(self._emitter, event_type, payload, **options)

    def _member(self, event: Event | str) -> BatchMember:
        event_id = event.event_id if isinstance(event, Event) else event
        member = self._members.get(event_id)
        if member is None:
            raise InvalidEventError(f"event {event_id!r} is not one of the {len(self.events)} events of this batch")
        return member

    def __getattr__(self, name: str) -> Any:
        if name in _VERBS:
            raise AttributeError(
                f"ctx.{name} is not possible in a batch handler, because it belongs to the handler of one event: "
                "subscribe that handler without batch=, or emit a child event for the work"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def item_type(function: Callable[..., Any], hint: Any) -> Any:
    """Return ``Event``, or the type of payload of which a batch handler with this hint gets a list."""
    if hint in (None, Any, object, *_LISTS):
        return Event
    if get_origin(hint) not in _LISTS:
        raise ConfigurationError(
            f"handler {function!r} has batch=, so it gets a list: its first argument must be list[Event], or a list of "
            f"a payload type, not {hint!r}"
        )
    (item,) = get_args(hint)
    return Event if item in (Any, object) else item


def argument_of(event: Event, item: Any) -> Any:
    """Return what stands for the event in the list. Raises ``PayloadDecodeError``."""
    return event if item is Event else decode_as(event.newest_payload_json, item)
