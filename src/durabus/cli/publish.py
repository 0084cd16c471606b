"""``durabus publish``: publishes one event."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import DEFAULTS, Common, opened_store
from durabus.cli.output import event_document, print_json
from durabus.model.event import DEFAULT_BUS, new_event


async def publish(
    event_type: Annotated[str, Parameter(name="TYPE", help="Event type, such as order.placed.")],
    /,
    *,
    data: Annotated[
        str, Parameter(help="Payload: JSON, @FILE with JSON, or - for stdin.", allow_leading_hyphen=True)
    ] = "null",
    bus: Annotated[str, Parameter(help="Bus to publish on.")] = DEFAULT_BUS,
    tag: Annotated[
        tuple[str, ...], Parameter(help="A tag. Repeat the option for several.", negative="", show_default=False)
    ] = (),
    delay: Annotated[float, Parameter(help="Seconds before the event may be claimed.")] = 0.0,
    priority: Annotated[int, Parameter(help="Larger numbers go first; 0 is normal.", allow_leading_hyphen=True)] = 0,
    idempotency_key: Annotated[
        str | None, Parameter(help="A second publish with the same key stores nothing new.")
    ] = None,
    common: Common = DEFAULTS,
) -> None:
    """Publish one event.

    Example: durabus publish order.placed --data '{"order_id": 7}'
    """
    new = new_event(
        event_type,
        payload_of(data),
        bus=bus,
        tags=tag,
        delay=delay,
        priority=priority,
        idempotency_key=idempotency_key,
    )
    async with opened_store(common, create=True) as store:
        event = (await store.add_events([new]))[0]
    duplicate = event.event_id != new.event_id
    if common.json:
        print_json({**event_document(event), "duplicate": duplicate})
        return
    known = f", published before under this key ({event.status})" if duplicate else ""
    print(f"{event.type} is event {event.id} on bus {event.bus} ({event.event_id}){known}")


def payload_of(data: str) -> Any:
    """The payload that ``--data`` gives."""
    text, source = _text(data)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{source} is not JSON",
            str(error),
            """quote it for the shell: --data '{"order_id": 7}'; a text needs inner quotes: --data '"text"'""",
            code=Exit.USAGE,
        ) from error


def _text(data: str) -> tuple[str | bytes, str]:
    if data == "-":
        return sys.stdin.buffer.read(), "stdin"
    if not data.startswith("@"):
        return data, "--data"
    path = Path(data[1:])
    try:
        return path.read_bytes(), str(path)
    except OSError as error:
        raise CommandFailed(
            f"cannot read {path}",
            error.strerror or str(error),
            "--data @FILE reads a file that contains JSON",
            code=Exit.USAGE,
        ) from error
