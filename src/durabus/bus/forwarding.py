"""Events that go on to another bus: once to each, however the buses are connected."""

from __future__ import annotations

from typing import Any

from durabus.errors import ConfigurationError
from durabus.model.event import Event, PublishOptions

PATH = "event_path"
ORIGIN = "event_origin"


def refuse_itself(source: str, target: str) -> None:
    """The name of a bus is what tells whether an event was there."""
    if source == target:
        raise ConfigurationError(
            f"forward from bus {source!r} to a bus of the same name: the end of a circle could not be told, "
            "give the buses different names"
        )


def copy_for(event: Event, source: str, target: str) -> tuple[dict[str, Any], PublishOptions] | None:
    """Metadata and options of the copy; None if the event was there already.

    Its key names the first event of the chain: two ways to one bus, and the repeat of a forward that crashed, store it
    once. It is a child of the event it copies, so that one completes after it.
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
