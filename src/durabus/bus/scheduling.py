"""The part of a bus that publishes events at set times."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from durabus.bus.options import BusOptions
from durabus.bus.requests import Requesting
from durabus.errors import ConfigurationError
from durabus.model.limits import Duration
from durabus.model.policies import BreakerOption, RetryPolicy
from durabus.schedules.schedule import CatchUp, Overlap, ScheduleDeclaration, declare
from durabus.schedules.scheduler import Scheduler
from durabus.schedules.schedules import Schedules, check_overlap
from durabus.store.contract import EventStore
from durabus.worker.handler import DEFAULT_TIMEOUT, HandlerFunction
from durabus.worker.missing_handlers import RemoteHandlers
from durabus.worker.registry import Registry
from durabus.worker.telemetry import Metrics

F = TypeVar("F", bound=HandlerFunction)

IN_CODE = "code"
"""The actor of the changes that declarations in code make."""


class Scheduling(Requesting):
    """A bus with schedules. Every node that serves the bus publishes their events, each once."""

    name: str
    store: EventStore
    _registry: Registry
    _serve: bool

    def __init__(
        self, options: BusOptions, *, remote: RemoteHandlers, metrics: Metrics, emitter: Callable[..., Any]
    ) -> None:
        super().__init__(options, remote=remote, metrics=metrics, emitter=emitter)
        self._declared: set[str] = set()
        self._undeclared: list[ScheduleDeclaration] = []
        """Those that the store does not have yet."""
        self._scheduler: Scheduler | None = None

    @abstractmethod
    async def open(self) -> None:
        """Open the store and start nothing."""

    @property
    def schedules(self) -> Schedules:
        """The schedules of this bus, those of ``every`` and others."""
        return Schedules(self.store, self.name, begin=self.open)

    def every(
        self,
        when: str | Duration,
        *,
        tz: str = "UTC",
        name: str | None = None,
        type: str | None = None,  # noqa: A002  (as in ``schedules.put``)
        payload: Any = None,
        catch_up: CatchUp | str = CatchUp.ONE,
        overlap: Overlap | str = Overlap.SKIP,
        tags: Iterable[str] = (),
        priority: int = 0,
        id: str | None = None,  # noqa: A002  (as in ``subscribe``)
        timeout: Duration | None = DEFAULT_TIMEOUT,
        slow_timeout: Duration | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        breaker: BreakerOption = None,
    ) -> Callable[[F], F]:
        """Call a handler at set times: ``@bus.every("*/5 * * * *", tz="Europe/Oslo")``, or ``@bus.every(30.0)``.

        This subscribes the handler to the events of ``type`` and declares a schedule that publishes them. The schedule
        has the name of the function, and the type ``schedule.NAME``, unless others are given. A bus that serves stores
        its declarations when it starts. ``schedules.put`` describes the options of the schedule, ``subscribe`` those of
        the handler.
        """

        def decorate(handler: F) -> F:
            chosen = name if name is not None else getattr(handler, "__name__", "")
            declared = declare(
                chosen,
                when,
                f"schedule.{chosen}" if type is None else type,
                payload,
                tz=tz,
                catch_up=catch_up,
                overlap=overlap,
                tags=tags,
                priority=priority,
            )
            check_overlap(self.store, declared.overlap)
            if declared.name in self._declared:
                raise ConfigurationError(
                    f"schedule {declared.name!r} is declared twice on bus {self.name!r}: give one of them another name="
                )
            self.subscribe(
                declared.type,
                handler,
                id=id,
                timeout=timeout,
                slow_timeout=slow_timeout,
                retry=retry,
                breaker=breaker,
            )
            self._declared.add(declared.name)
            self._undeclared.append(declared)
            if self._scheduler is not None:
                self._scheduler.nudge()
            return handler

        return decorate

    async def _declare(self) -> None:
        """Store the schedules that were declared in code, if this bus serves."""
        while self._undeclared and self._serve:
            some = list(self._undeclared)
            await Schedules(self.store, self.name).put_all(some, actor=IN_CODE)
            self._undeclared = [one for one in self._undeclared if one not in some]

    def _start_scheduler(self) -> None:
        """Begin to publish. Only a bus with a worker does."""
        if self._scheduler is None:
            self._scheduler = Scheduler(
                self.store,
                self.name,
                takeover=self._options.takeover,
                outage=self._registry.outage,
                nodes=self._registry.nodes,
                prepare=self._declare,
            )
            self._scheduler.start()
