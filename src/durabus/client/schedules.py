"""The schedules of a server's bus: the verbs of both clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from durabus.client.calls import ApiCall, get, query
from durabus.model.limits import Duration, check_tags, seconds

Document = dict[str, Any]
"""A schedule in the format of the HTTP API."""


def put_call(
    name: str, when: str | Duration, event_type: str, payload: Any, options: Mapping[str, Any]
) -> ApiCall[Any]:
    """Store or replace a schedule. ``options`` are those of ``ClientSchedules.put``."""
    given = {name: value for name, value in options.items() if value is not None and name != "bus"}
    timing = {"cron": when} if isinstance(when, str) else {"every": seconds(when, "every", allow_zero=False)}
    if "tags" in given:
        given["tags"] = ",".join(check_tags(given["tags"]))
    body = msgspec.json.encode({"type": event_type, "payload": payload, **timing, **given})
    path = _path(name) + query(bus=options.get("bus"))
    return ApiCall(method="PUT", path=path, body=body, read=msgspec.json.decode, repeatable=True)


def verb_call(verb: str, name: str, reason: str | None, bus: str | None) -> ApiCall[Any]:
    """Pause, resume or run a schedule. A second ``run`` would publish a second event, so it is not repeated."""
    path = f"{_path(name)}/{verb}" + query(reason=reason, bus=bus)
    return ApiCall(method="POST", path=path, read=msgspec.json.decode, repeatable=verb != "run")


def delete_call(name: str, reason: str | None, bus: str | None) -> ApiCall[bool]:
    """Delete a schedule."""
    path = _path(name) + query(reason=reason, bus=bus)
    return ApiCall(method="DELETE", path=path, read=_deleted, repeatable=True)


def read_call(name: str, bus: str | None) -> ApiCall[Any]:
    """Read one schedule."""
    return get(_path(name) + query(bus=bus), msgspec.json.decode)


def history_call(name: str, limit: int, bus: str | None) -> ApiCall[Any]:
    """Read the states of a schedule."""
    return get(f"{_path(name)}/history" + query(limit=limit, bus=bus), _listed)


def list_call(bus: str | None) -> ApiCall[Any]:
    """Read all schedules."""
    return get("/schedules" + query(bus=bus), _listed)


def _deleted(body: bytes) -> bool:
    return bool(msgspec.json.decode(body)["deleted"])


def _listed(body: bytes) -> Any:
    return msgspec.json.decode(body)["schedules"]


def _path(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"


class ClientSchedules:
    """The schedules, for async code. Answers are in the format of the HTTP API."""

    def __init__(self, send: Callable[[ApiCall[Any]], Awaitable[Any]]) -> None:
        self._send = send

    async def put(
        self,
        name: str,
        when: str | Duration,
        event_type: str,
        payload: Any = None,
        *,
        tz: str | None = None,
        catch_up: str | None = None,
        overlap: str | None = None,
        tags: Iterable[str] | None = None,
        priority: int | None = None,
        reason: str | None = None,
        bus: str | None = None,
    ) -> Document:
        """As ``Schedules.put``."""
        options = {"tz": tz, "catch_up": catch_up, "overlap": overlap, "tags": tags, "priority": priority}
        options |= {"reason": reason, "bus": bus}
        found: Document = await self._send(put_call(name, when, event_type, payload, options))
        return found

    async def get(self, name: str, *, bus: str | None = None) -> Document:
        """One schedule and its ``next_runs``. Raises ``ApiError`` with status 404 if there is none."""
        found: Document = await self._send(read_call(name, bus))
        return found

    async def history(self, name: str, limit: int = 100, *, bus: str | None = None) -> Iterable[Document]:
        """The newest states of a schedule, newest first."""
        found: Iterable[Document] = await self._send(history_call(name, limit, bus))
        return found

    async def delete(self, name: str, *, reason: str | None = None, bus: str | None = None) -> bool:
        """Delete a schedule. False if there was none."""
        deleted: bool = await self._send(delete_call(name, reason, bus))
        return deleted

    async def pause(self, name: str, *, reason: str | None = None, bus: str | None = None) -> Document:
        """Stop a schedule until it is resumed."""
        found: Document = await self._send(verb_call("pause", name, reason, bus))
        return found

    async def resume(self, name: str, *, reason: str | None = None, bus: str | None = None) -> Document:
        """Let a paused schedule go on with its next slot."""
        found: Document = await self._send(verb_call("resume", name, reason, bus))
        return found

    async def run_now(self, name: str, *, reason: str | None = None, bus: str | None = None) -> str:
        """Let a worker publish a tick at once. Returns its ``event_id``."""
        event_id: str = (await self._send(verb_call("run", name, reason, bus)))["event_id"]
        return event_id

    async def list(self, *, bus: str | None = None) -> Iterable[Document]:
        """All schedules, in order of their names."""
        found: Iterable[Document] = await self._send(list_call(bus))
        return found


class SyncClientSchedules:
    """The same verbs, blocking."""

    def __init__(self, send: Callable[[ApiCall[Any]], Any]) -> None:
        self._send = send

    def put(self, name: str, when: str | Duration, event_type: str, payload: Any = None, **options: Any) -> Document:
        """As ``ClientSchedules.put``."""
        found: Document = self._send(put_call(name, when, event_type, payload, options))
        return found

    def get(self, name: str, *, bus: str | None = None) -> Document:
        """As ``ClientSchedules.get``."""
        found: Document = self._send(read_call(name, bus))
        return found

    def history(self, name: str, limit: int = 100, *, bus: str | None = None) -> Iterable[Document]:
        """As ``ClientSchedules.history``."""
        found: Iterable[Document] = self._send(history_call(name, limit, bus))
        return found

    def delete(self, name: str, *, reason: str | None = None, bus: str | None = None) -> bool:
        """As ``ClientSchedules.delete``."""
        deleted: bool = self._send(delete_call(name, reason, bus))
        return deleted

    def pause(self, name: str, *, reason: str | None = None, bus: str | None = None) -> Document:
        """As ``ClientSchedules.pause``."""
        found: Document = self._send(verb_call("pause", name, reason, bus))
        return found

    def resume(self, name: str, *, reason: str | None = None, bus: str | None = None) -> Document:
        """As ``ClientSchedules.resume``."""
        found: Document = self._send(verb_call("resume", name, reason, bus))
        return found

    def run_now(self, name: str, *, reason: str | None = None, bus: str | None = None) -> str:
        """As ``ClientSchedules.run_now``."""
        event_id: str = self._send(verb_call("run", name, reason, bus))["event_id"]
        return event_id

    def list(self, *, bus: str | None = None) -> Iterable[Document]:
        """As ``ClientSchedules.list``."""
        found: Iterable[Document] = self._send(list_call(bus))
        return found
