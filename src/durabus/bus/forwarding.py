"""Parents, children and forwarded copies: how deep a chain may go, and which children and copies are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from durabus.errors import ConfigurationError
from durabus.model.event import Event, PublishOptions, ordering_key_of
from durabus.model.result import HandlerResult, MaxDepthError

MAX_DEPTH = 50
DEPTH = "event_depth"
"""The metadata entry with the number of events above a child. It travels with the event through all processes."""
CHAIN = "event_chain"
"""The metadata entry that names the newest events above, for the error. Only events near the limit have it."""
SHOWN = 4


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


def refuse_deeper(results: Iterable[HandlerResult]) -> None:
    """Raise ``MaxDepthError`` in a handler that waits for a child which ended with this error."""
    for result in results:
        name, _, text = (result.error or "").partition(": ")
        if name == MaxDepthError.__name__:
            raise MaxDepthError(text)


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


PATH = "event_path"
ORIGIN = "event_origin"


def refuse_itself(source: str, target: str) -> None:
    """Raise if a bus would forward to its own name: an event could not tell whether it was there already."""
    if source == target:
        raise ConfigurationError(
            f"forward from bus {source!r} to a bus of the same name: the copies would never end, "
            "give the buses different names"
        )


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
    options: PublishOptions = {
        "tags": event.tags,
        "priority": event.priority,
        "idempotency_key": f"forward:{origin}",
        "parent_id": event.event_id,
    }
    return {**metadata, PATH: path, ORIGIN: origin}, options
