"""New events of a bus: what users may pass as one, parents and children, how deep a chain may go, forwarded copies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Protocol, Unpack, cast

import msgspec

from durabus.bus.handle import Handle
from durabus.bus.options import BusOptions
from durabus.errors import ConfigurationError, InvalidEventError
from durabus.model.event import EXPIRES_AFTER, EmitOptions, Event, NewEvent, PublishOptions, new_event, ordering_key_of
from durabus.model.limits import check_name
from durabus.model.result import MaxDepthError
from durabus.worker.children.emissions import RUN, EmittingCall, is_alone
from durabus.worker.children.waiting import handled_here
from durabus.worker.telemetry import metadata_of

MAX_DEPTH = 50
DEPTH = "event_depth"
"""The metadata entry with the number of events above a child. It travels with the event through all processes."""
CHAIN = "event_chain"
"""The metadata entry that names the newest events above, for the error. Only events near the limit have it."""
SHOWN = 4
PATH = "event_path"
ORIGIN = "event_origin"


def type_name(event_class: type) -> str:
    """The event type of a class: its ``event_type`` attribute if it has one, else its name."""
    name = getattr(event_class, "event_type", event_class.__name__)
    return name if isinstance(name, str) else event_class.__name__


def result_type(event: object) -> Any:
    """What handlers of this event, or class of events, return: its ``event_result_type``; None if it has none."""
    return getattr(event, "event_result_type", None)


def typed_event(event: object, payload: object) -> tuple[str, object]:
    """Return the type and the payload of an event that is an object of its own class."""
    known = is_dataclass(event) or isinstance(event, msgspec.Struct) or hasattr(event, "model_dump")
    if not known or isinstance(event, type):
        raise InvalidEventError(
            f"event type={event!r}: must be a string, or one object (dataclass, msgspec struct, pydantic model)"
        )
    if payload is not None:
        raise InvalidEventError(f"{event!r} is an event of its own: a payload beside it would be lost")
    return type_name(type(event)), event


def make_event(
    bus: BusOptions,
    event_type: str | object,
    payload: Any,
    metadata: Mapping[str, Any] | None,
    options: EmitOptions,
) -> tuple[NewEvent, EmittingCall | None]:
    """Return a new event. Inside a handler it is a child of the handled event, unless ``options`` name a parent.

    A delayed event is no child: it would keep its parent open for as long, and so would each event of a chain.
    Also return the call of the handler that emits it, and to whose success it belongs; None outside of handlers, and
    with ``parent_id=None``. Raises ``LeaseLost`` if that call has ended.
    """
    key = options.pop("key", None)
    if not isinstance(event_type, str):
        event_type, payload = typed_event(event_type, payload)
    parent = handled_here()
    emitter = _emitter(options)
    run = None if parent is None else emitter
    if key is not None:
        refuse_key(key, run)
    if parent is not None and "parent_id" not in options and not (options.get("delay") or options.get("at")):
        options["parent_id"] = parent.claim.event.event_id
    if bus.tracing is not None:
        metadata = metadata_of(bus.tracing, event_type, metadata)
    if parent is not None and options.get("parent_id") == parent.claim.event.event_id:
        metadata = child_metadata(metadata or {}, parent.claim.event, event_type, bus.max_depth)
    elif metadata:
        metadata = first_metadata(metadata)
    new = new_event(event_type, payload, bus=bus.name, metadata=metadata, **cast("PublishOptions", options))
    if new.metadata_json is not None and parent is not None and new.parent_id is not None:
        refuse_behind_itself(new.metadata_json, bus.name, parent.claim.event)
    if run is not None and options.get("event_id") is None:
        new = run.identify(new, key)
    return new, run


def _emitter(options: EmitOptions) -> EmittingCall | None:
    """Return the call of the handler that emits the event; None if the options ask for an event of its own."""
    run = RUN.get()
    if run is None or is_alone(options):
        return None
    if run.is_over:
        raise run.ended()
    return run


def refuse_key(key: str, run: EmittingCall | None) -> None:
    """Raise if ``key`` is no name, or names no child of a handler."""
    check_name(key, "key")
    if run is None:
        raise ConfigurationError(
            f"key={key!r}: it names a child among those that a handler emits, and this event is none: use "
            "idempotency_key= here"
        )


def add_to_parent(handle: Handle) -> None:
    """Let the handled event wait for this one, if it is its child."""
    parent = handled_here()
    if parent is not None and parent.claim.event.event_id == handle.new.parent_id:
        if parent.children is None:
            parent.children = []
        parent.children.append(handle)


def check_max_depth(max_depth: int) -> int:
    """Raise ``ConfigurationError`` if this is not a number of levels."""
    if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < 1:
        raise ConfigurationError(f"max_depth={max_depth!r}: must be a whole number of 1 or more, such as {MAX_DEPTH}")
    return max_depth


def child_metadata(metadata: Mapping[str, Any], parent: Event, event_type: str, max_depth: int) -> Mapping[str, Any]:
    """Return the metadata of a child of ``parent``. Raises ``MaxDepthError`` if it would be too deep."""
    above = parent.metadata
    depth, chain = above.get(DEPTH), above.get(CHAIN)
    depth = depth + 1 if isinstance(depth, int) else 1
    names = [*(chain if isinstance(chain, list) else ()), f"{parent.type} {parent.event_id}"][-SHOWN:]
    if depth > max_depth:
        shown = " > ".join(["…"] * (depth > len(names)) + [str(name) for name in names] + [event_type])
        raise MaxDepthError(
            f"a child {event_type!r} would be {depth} levels below the first event of its chain, and max_depth is "
            f"{max_depth}: {shown}. If handlers do not publish in circles, give the child parent_id=None, which begins "
            "a new chain, or give the bus a larger max_depth"
        )
    marks: dict[str, Any] = {DEPTH: depth} if depth <= max_depth - SHOWN else {DEPTH: depth, CHAIN: names}
    kept = first_metadata(metadata)
    return {**kept, **marks} if isinstance(kept, Mapping) else kept


def first_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of an event that begins a chain, without the entries that belong to another chain."""
    if not isinstance(metadata, Mapping) or DEPTH not in metadata:
        return metadata  # ``new_event`` refuses what is no mapping
    return {key: value for key, value in metadata.items() if key not in (DEPTH, CHAIN)}


def refuse_behind_itself(metadata_json: str, bus: str, parent: Event) -> None:
    """Raise if the child and its parent would wait for each other."""
    key = ordering_key_of(metadata_json)
    if key is not None and key == parent.ordering_key and parent.bus == bus:
        raise ConfigurationError(
            f"a child with the ordering_key={key!r} of its parent {parent.type!r} would wait for its parent, and the "
            "parent for its child: use parent_id=None to emit an event of its own, or another key"
        )


def refuse_itself(source: str, target: str) -> None:
    """Raise if a bus would forward to its own name: an event could not tell whether it was there already."""
    if source == target:
        raise ConfigurationError(
            f"forward from bus {source!r} to a bus of the same name: the copies would never end, "
            "give the buses different names"
        )


class ForwardTarget(Protocol):
    """A bus to which events are forwarded."""

    name: str

    async def start(self) -> object:
        """Start it, unless it runs already."""
        ...

    def emit(
        self, event_type: str, payload: Any, metadata: Mapping[str, Any], /, **options: Unpack[PublishOptions]
    ) -> Handle:
        """Emit an event there."""
        ...


def forwarder(source: str, target: ForwardTarget) -> Callable[[Event], Awaitable[None]]:
    """Return a handler that copies its events to another bus, as their children."""
    refuse_itself(source, target.name)

    async def hand_on(event: Event) -> None:
        copied = copy_for(event, source, target.name)
        if copied is not None:
            metadata, options = copied
            await target.start()
            await target.emit(event.type, event.payload, metadata, **options).stored()

    return hand_on


def copy_for(event: Event, source: str, target: str) -> tuple[dict[str, Any], PublishOptions] | None:
    """Return metadata and options of the copy; None if the event was on the target bus already.

    Its idempotency key names the first event of the chain. So the store keeps one copy, also if two ways lead to the
    bus or a forward is repeated after a crash. The copy is a child of the event, which completes after it.
    """
    metadata = event.metadata
    path = metadata.get(PATH)
    path = [name for name in path if isinstance(name, str)] if isinstance(path, list) else []
    if source not in path:
        path.append(source)
    if target in path:
        return None
    origin = metadata.get(ORIGIN, event.event_id)
    if event.expires_after is not None:
        # The copy gets what is left of the time.
        metadata[EXPIRES_AFTER] = event.expires_after - ((event.picked_ts or event.created_ts) - event.created_ts)
    options: PublishOptions = {
        "tags": event.tags,
        "priority": event.priority,
        "idempotency_key": f"forward:{origin}",
        "parent_id": event.event_id,
    }
    return {**metadata, PATH: path, ORIGIN: origin}, options
