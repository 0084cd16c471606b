"""The schedules of a ``SyncEventBus``: the same verbs, blocking."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from durabus.model.limits import Duration
from durabus.schedules.schedule import Schedule
from durabus.schedules.schedules import Schedules

T = TypeVar("T")


class CallInLoop(Protocol):
    """Runs a coroutine on the event loop of the bus, and returns its result in the calling thread."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises what the coroutine raises."""
        ...


class SyncSchedules:
    """Any thread may call it."""

    def __init__(self, call: CallInLoop, schedules: Schedules) -> None:
        self._call = call
        self._schedules = schedules

    def put(self, name: str, when: str | Duration, event_type: str, payload: object = None, **options: Any) -> Schedule:
        """As ``Schedules.put``."""
        return self._call(lambda: self._schedules.put(name, when, event_type, payload, **options))

    def get(self, name: str) -> Schedule | None:
        """As ``Schedules.get``."""
        return self._call(lambda: self._schedules.get(name))

    def delete(self, name: str, *, actor: str | None = None, reason: str | None = None) -> bool:
        """As ``Schedules.delete``."""
        return self._call(lambda: self._schedules.delete(name, actor=actor, reason=reason))

    def pause(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Schedule:
        """As ``Schedules.pause``."""
        return self._call(lambda: self._schedules.pause(name, actor=actor, reason=reason))

    def resume(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Schedule:
        """As ``Schedules.resume``."""
        return self._call(lambda: self._schedules.resume(name, actor=actor, reason=reason))

    def run_now(self, name: str, *, actor: str | None = None, reason: str | None = None) -> str:
        """As ``Schedules.run_now``."""
        return self._call(lambda: self._schedules.run_now(name, actor=actor, reason=reason))

    def next_runs(self, name: str, count: int = 5) -> Sequence[datetime]:
        """As ``Schedules.next_runs``."""
        return self._call(lambda: self._schedules.next_runs(name, count))

    def history(self, name: str, limit: int = 100) -> Sequence[Schedule]:
        """As ``Schedules.history``."""
        return self._call(lambda: self._schedules.history(name, limit))

    def list(self) -> Sequence[Schedule]:
        """As ``Schedules.list``."""
        return self._call(self._schedules.list)
