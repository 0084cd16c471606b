"""The stream of the log. It is created with settings that lose nothing, and refused with other settings."""

from __future__ import annotations

from typing import Any

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NATSError
from nats.errors import NoRespondersError

from durabus.errors import SchemaError, StoreUnavailableError
from durabus.stores.nats.layout import NatsLayout
from durabus.stores.replicated_log.transport import UnknownOutcomeError

STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
SUBJECTS_OVERLAP = 10065
_NEEDED = {
    "retention": "limits",
    "storage": "file",
    "max_age": 0,
    "max_msgs": -1,
    "max_msgs_per_subject": -1,
    "discard": "new",
}


class APIError(StoreUnavailableError):
    """JetStream replied with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"JetStream: {text} (error {code})")
        self.code = code


async def api(client: Client, verb: str, request: dict[str, Any] | None = None, *, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109
    """Call JetStream's API and return its reply."""
    body = b"" if request is None else msgspec.json.encode(request)
    try:
        reply = await client.request(f"$JS.API.{verb}", body, timeout=timeout)
    except NoRespondersError as error:
        raise StoreUnavailableError("JetStream does not reply: is it enabled on this server?") from error
    except (NATSError, TimeoutError) as error:
        raise UnknownOutcomeError(f"JetStream did not reply to {verb}: {error!r}") from error
    answer: dict[str, Any] = msgspec.json.decode(reply.data)
    if "error" in answer:
        raise APIError(answer["error"].get("err_code", 0), answer["error"].get("description", "no description"))
    return answer


async def ensure_streams(client: Client, layout: NatsLayout, *, replicas: int, timeout: float) -> None:  # noqa: ASYNC109
    """Create the streams that are missing, and check the stream of the log."""
    log = {"name": layout.stream, "subjects": layout.subjects, "num_replicas": replicas, **_NEEDED}
    snapshots = {
        "name": layout.snapshots,
        "subjects": [f"{layout.prefix}.snapshot.>"],
        "num_replicas": replicas,
        "storage": "file",
        "retention": "limits",
        "discard": "old",  # each subject has one message, which a new one replaces
        "max_msgs_per_subject": 1,
        "allow_direct": True,
    }
    for config in (log, snapshots):
        await _ensure(client, config, timeout=timeout)
    await verify_log(client, layout, timeout=timeout)


async def _ensure(client: Client, config: dict[str, Any], *, timeout: float) -> None:  # noqa: ASYNC109
    try:
        await api(client, f"STREAM.CREATE.{config['name']}", config, timeout=timeout)
    except APIError as error:
        if error.code == STREAM_NAME_IN_USE:
            return  # it exists with other settings: those of the log are checked below, the others may differ
        if error.code == SUBJECTS_OVERLAP:
            raise SchemaError(
                f"another stream has {config['subjects']} already: give the URL another prefix, or remove that stream"
            ) from error
        raise


async def verify_log(client: Client, layout: NatsLayout, *, timeout: float) -> None:  # noqa: ASYNC109
    """Raise ``SchemaError`` for settings that would drop or change records, or that leave a lane out."""
    try:
        config = (await api(client, f"STREAM.INFO.{layout.stream}", timeout=timeout))["config"]
    except APIError as error:
        if error.code == STREAM_NOT_FOUND:
            raise SchemaError(
                f"the stream {layout.stream!r} is missing: it was deleted, and the log with it"
            ) from error
        raise
    wrong = [
        f"{name}={config.get(name)!r}, not {value!r}" for name, value in _NEEDED.items() if config.get(name) != value
    ]
    if sorted(config.get("subjects", [])) != sorted(layout.subjects):
        wrong.append(f"subjects={config.get('subjects')!r}, not {layout.subjects!r}")
    if config.get("mirror") or config.get("sources") or config.get("subject_transform") or config.get("sealed"):
        wrong.append("a mirror, a source, a transform or sealed")
    if wrong:
        raise SchemaError(
            f"the stream {layout.stream!r} would lose or change records: {'; '.join(wrong)}; edit the stream"
        )
