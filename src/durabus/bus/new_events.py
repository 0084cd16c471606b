"""New events of a bus: one that a handler publishes is a child of the event that is handled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durabus.bus.forwarding import child_metadata, first_metadata, refuse_behind_itself
from durabus.bus.handle import Handle
from durabus.bus.naming import typed_event
from durabus.bus.options import BusOptions
from durabus.model.event import NewEvent, PublishOptions, new_event
from durabus.worker.children.waiting import handled_here
from durabus.worker.tracing import metadata_of


def make_event(
    bus: BusOptions,
    event_type: str | object,
    payload: Any,
    metadata: Mapping[str, Any] | None,
    options: PublishOptions,
) -> NewEvent:
    """Return a new event. Inside a handler it is a child of the handled event, unless ``options`` name a parent.

    A delayed event is no child: it would keep its parent open for as long, and so would each event of a chain.
    """
    if not isinstance(event_type, str):
        event_type, payload = typed_event(event_type, payload)
    parent = handled_here()
    if parent is not None and "parent_id" not in options and not options.get("delay"):
        options["parent_id"] = parent.claim.event.event_id
    if bus.tracing is not None:
        metadata = metadata_of(bus.tracing, event_type, metadata)
    if parent is not None and options.get("parent_id") == parent.claim.event.event_id:
        metadata = child_metadata(metadata or {}, parent.claim.event, event_type, bus.max_depth)
    elif metadata:
        metadata = first_metadata(metadata)
    new = new_event(event_type, payload, bus=bus.name, metadata=metadata, **options)
    if new.metadata_json is not None and parent is not None and new.parent_id is not None:
        refuse_behind_itself(new.metadata_json, bus.name, parent.claim.event)
    return new


def add_to_parent(handle: Handle) -> None:
    """Let the handled event wait for this one, if it is its child."""
    parent = handled_here()
    if parent is not None and parent.claim.event.event_id == handle.new.parent_id:
        if parent.children is None:
            parent.children = []
        parent.children.append(handle)
