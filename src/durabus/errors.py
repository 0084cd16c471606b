"""Every error durabus raises.

::

    DurabusError
    ├── InvalidPayloadError        a payload, metadata or result that is not JSON, or is too large
    ├── PayloadDecodeError         a stored payload that cannot be read back as the type asked for
    ├── InvalidEventError          a type, pattern, tag, key or id outside its limits
    ├── ConfigurationError         options that contradict each other, found before any I/O
    │   └── DuplicateHandlerError  two handlers with one id
    ├── StoreError                 the store refused or could not be reached
    │   ├── UnknownStoreError      no store for this URL
    │   ├── SchemaError            the tables are missing, damaged or from a newer durabus
    │   ├── DamagedLogError        NATS, Kafka: the log differs from what this node has read; the node stopped
    │   ├── StoreUnavailableError  disk full, read-only, locked for too long, connection lost
    │   ├── StoreClosedError       used after close(), or in a forked child
    │   └── UnsupportedByStore     this store declares that it cannot do this
    ├── JarError                   a Java archive cannot be fetched, or is not the one of the lock file
    ├── ServerError                a server that durabus starts for tests and demos did not start or stop
    ├── ApiError                   the HTTP API refused a call
    ├── LeaseLost                  the claim is no longer current: nothing was written
    ├── LockHeld                   another holder kept the lock for the whole waiting time
    ├── EventNotFound              no event under this id
    ├── ScheduleNotFound           no schedule of this name
    ├── ScheduleChanged            others kept changing the schedule while this change was made
    ├── NotADeadLetter             retry of an event that is not in the dead letters
    ├── EventNotStored             a handler emitted the event, and its attempt did not succeed
    ├── EventFailed                the event whose result was awaited ended in the dead letters
    ├── EventCancelled             the event whose end was awaited was cancelled
    ├── EventEnded                 cancel of an event that has ended
    ├── NoAnswer                   no handler answered a request, or its value could not be stored
    ├── HistoryFullError           the bus holds its maximum of events and may not drop any
    ├── PipelineError              Spark, Java, the jars or the lake are not as the pipeline needs them
    └── EventBusShutdownError      publish or subscribe after shutdown

Handlers raise or return ``TransientError`` and ``UnrecoverableError``. These are in ``durabus.model.result``, because
they are outcomes of handlers, not failures of durabus.
"""

from __future__ import annotations

from typing import Any


class DurabusError(Exception):
    """The base class of every error of durabus."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, vars(self))


def _rebuilt(cls: type[DurabusError], args: tuple[Any, ...], fields: dict[str, Any]) -> DurabusError:
    """Rebuild a pickled error with its text and fields, without its constructor, which would format the text again."""
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(fields)
    return error


class InvalidPayloadError(DurabusError):
    """The value cannot be stored as JSON. Nothing was published."""


class PayloadDecodeError(DurabusError):
    """The stored JSON does not decode to the type that was asked for."""


class InvalidEventError(DurabusError):
    """A type, pattern, tag, key or id is empty, too long or malformed. Nothing was changed."""


class ConfigurationError(DurabusError):
    """An option is invalid, or options contradict each other."""


class DuplicateHandlerError(ConfigurationError):
    """Another handler has the same id."""


class StoreError(DurabusError):
    """The store refused a call or could not be reached."""


class UnknownStoreError(StoreError):
    """There is no store for this URL."""


class SchemaError(StoreError):
    """The store's tables are not those that this version of durabus works with."""


class DamagedLogError(StoreError):
    """A record of the broker's log is damaged, missing, or not the one that this node has read there before.

    The node that raises this has stopped for good: if it went on, its decisions would differ from those of other nodes.
    """

    def __init__(self, log: str, position: str, problem: str, remedy: str) -> None:
        super().__init__(f"{log} at {position}: {problem}. This node has stopped. {remedy}")
        self.log = log
        self.position = position


class StoreUnavailableError(StoreError):
    """The store could not do the call, or could not confirm it. Repeat it later: it takes effect once."""


class StoreClosedError(StoreError):
    """The store object is closed, or it belongs to the parent of this forked process."""


class UnsupportedByStore(StoreError):  # noqa: N818  (public name fixed by the design)
    """The ``features`` of the store say that it cannot do this."""


class JarError(DurabusError):
    """A Java archive could not be fetched, or is not the one that the lock file names. It was not used."""


class ServerError(DurabusError):
    """A server of ``durabus.testing.servers`` could not be started, stopped or found on this machine."""


class ApiError(DurabusError):
    """The HTTP API refused a call. Programs should check ``code``, such as ``lease_lost``; the text may change.

    ``code`` is None if the response did not come from the API but, for example, from a proxy.
    """

    def __init__(self, status: int, detail: str, code: str | None = None) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.code = code


class LeaseLost(DurabusError):  # noqa: N818  (public name fixed by the design)
    """The write carried a claim that is not current. Nothing was changed."""

    def __init__(self, subject: int | str, reason: str) -> None:
        super().__init__(f"claim on {subject!r} lost: {reason}")
        self.subject = subject
        self.reason = reason


class LockHeld(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """Another holder kept the lock for as long as the caller was ready to wait."""

    def __init__(self, key: str, waited: float) -> None:
        super().__init__(f"lock {key!r} is held by another holder after {waited:g} s of waiting: try again later")
        self.key = key


class EventNotFound(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """The store holds no event under this id."""

    def __init__(self, ref: int | str) -> None:
        super().__init__(f"no event {ref!r} in the store: it was never published, or it was trimmed, purged or removed")
        self.ref = ref


class ScheduleNotFound(DurabusError):  # noqa: N818  (as EventNotFound)
    """The bus has no schedule of this name."""

    def __init__(self, name: str, bus: str) -> None:
        super().__init__(f"bus {bus!r} has no schedule {name!r}: it was never put, or it was deleted")
        self.name = name
        self.bus = bus


class ScheduleChanged(DurabusError):  # noqa: N818  (as EventNotFound)
    """Other callers, or workers that fire the schedule, came first each time. Nothing of this change was stored."""

    def __init__(self, name: str, bus: str, times: int) -> None:
        super().__init__(
            f"schedule {name!r} of bus {bus!r}: others came first {times} times while this change was made. Try again"
        )
        self.name = name
        self.bus = bus


class NotADeadLetter(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """Only an event that ended FAILED or COMPLETED_WITH_ERRORS can be retried from the dead letters."""

    def __init__(self, ref: int | str, status: str) -> None:
        super().__init__(f"event {ref!r} is {status}, not a dead letter: there is nothing to retry")
        self.ref = ref
        self.status = status


class EventNotStored(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """A handler emitted the event and did not succeed: what it emits is stored together with its success."""

    def __init__(self, event_id: str, event_type: str) -> None:
        super().__init__(
            f"this attempt did not store event {event_id} ({event_type}): its handler did not succeed, and a later "
            "attempt emits it again. To store it at once, await handle.stored() inside the handler, or emit it with "
            "parent_id=None"
        )
        self.event_id = event_id


class EventFailed(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """The event whose result was awaited ended in the dead letters."""

    def __init__(self, event_id: str, status: str, errors: tuple[str, ...]) -> None:
        super().__init__(f"event {event_id} ended {status}: {errors[-1] if errors else 'no error was recorded'}")
        self.event_id = event_id
        self.status = status
        self.errors = errors


class EventCancelled(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """The event whose end was awaited was cancelled, or it expired before a worker could begin it."""

    def __init__(self, event_id: str, reason: str | None) -> None:
        super().__init__(f"event {event_id} was cancelled: {reason or 'no reason was recorded'}")
        self.event_id = event_id
        self.reason = reason


class EventEnded(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """Only an event that is PENDING or PROCESSING can be cancelled."""

    def __init__(self, ref: int | str, status: str) -> None:
        super().__init__(f"event {ref!r} has ended {status}: there is nothing to cancel")
        self.ref = ref
        self.status = status


class NoAnswer(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """The event of a request completed without a value: no handler ran, or the store could not keep its value."""

    def __init__(self, event_id: str, reason: str) -> None:
        super().__init__(f"no answer to request {event_id}: {reason}")
        self.event_id = event_id
        self.reason = reason


class HistoryFullError(DurabusError):
    """The bus holds ``max_history_size`` events and may not drop any. Nothing was published."""


class PipelineError(DurabusError):
    """Spark, its Java, the jars or the lake are not as the pipeline needs them."""


class EventBusShutdownError(DurabusError):
    """The bus is shut down, or shutting down, and accepts no more events or handlers."""
