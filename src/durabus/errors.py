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
    │   ├── DamagedLogError        NATS, Kafka: the log is not the one that this node has read; the node stopped
    │   ├── StoreUnavailableError  disk full, read-only, locked for too long, connection lost
    │   ├── StoreClosedError       used after close(), or in a forked child
    │   └── UnsupportedByStore     this store declares that it cannot do this
    ├── ServerError                a server that durabus starts for tests and first tries did not start or stop
    ├── ApiError                   the HTTP API refused a call
    ├── LeaseLost                  the claim is no longer yours: nothing was written
    ├── LockHeld                   somebody else holds the lock that was waited for
    ├── EventNotFound              no event under this id
    ├── NotADeadLetter             retry of an event that is not in the dead letters
    ├── EventFailed                the event whose result was awaited ended in the dead letters
    ├── HistoryFullError           the bus keeps as many events as it may, and drops none
    ├── PipelineError              Spark, Java, the jars or the lake are not as the pipeline needs them
    └── EventBusShutdownError      publish or subscribe after shutdown

``TransientError`` and ``UnrecoverableError`` are what handlers raise or return; they live in
``durabus.model.result`` because they are outcomes, not failures of durabus.
"""

from __future__ import annotations

from typing import Any


class DurabusError(Exception):
    """Catches everything durabus raises on its own account."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, vars(self))


def _rebuilt(cls: type[DurabusError], args: tuple[Any, ...], fields: dict[str, Any]) -> DurabusError:
    """An error from another process: with its text and fields, past a constructor that would make the text anew."""
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(fields)
    return error


class InvalidPayloadError(DurabusError):
    """The value cannot be stored as JSON; nothing was published."""


class PayloadDecodeError(DurabusError):
    """The stored JSON does not decode to the type that was asked for."""


class InvalidEventError(DurabusError):
    """A type, pattern, tag, key or id is empty, too long or malformed; nothing was changed."""


class ConfigurationError(DurabusError):
    """Options that cannot work together."""


class DuplicateHandlerError(ConfigurationError):
    """A handler id is taken already."""


class StoreError(DurabusError):
    """The store refused a call or could not be reached."""


class UnknownStoreError(StoreError):
    """No back end is known for this URL."""


class SchemaError(StoreError):
    """The store's tables are not the ones this version works with."""


class DamagedLogError(StoreError):
    """A broker's log has a damaged record, lacks one, or has another one where this node had read before.

    The node that raises it has stopped for good: had it gone on, it would decide otherwise than the other nodes.
    """

    def __init__(self, log: str, position: str, problem: str, remedy: str) -> None:
        super().__init__(f"{log} at {position}: {problem}. This node has stopped. {remedy}")
        self.log = log
        self.position = position


class StoreUnavailableError(StoreError):
    """The call did not take effect because the store could not write; try again later."""


class StoreClosedError(StoreError):
    """The store object is closed, or belongs to the parent of this forked process."""


class UnsupportedByStore(StoreError):  # noqa: N818  (public name fixed by the design)
    """The back end's ``features`` say that it cannot do this."""


class ServerError(DurabusError):
    """A server of ``durabus.testing.servers`` could not be started, stopped or found on this machine."""


class ApiError(DurabusError):
    """The HTTP API refused a call. Decide by ``code``, such as ``lease_lost``; the text may change.

    ``code`` is None if it was not the API that answered, but something in between, such as a proxy.
    """

    def __init__(self, status: int, detail: str, code: str | None = None) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.code = code


class LeaseLost(DurabusError):  # noqa: N818  (public name fixed by the design)
    """The write carried a claim that is not the current one. Nothing was changed."""

    def __init__(self, subject: int | str, reason: str) -> None:
        super().__init__(f"claim on {subject!r} lost: {reason}")
        self.subject = subject
        self.reason = reason


class LockHeld(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """Somebody else holds the lock, and did so for as long as the caller would wait."""

    def __init__(self, key: str, waited: float) -> None:
        super().__init__(f"lock {key!r} is held by somebody else after {waited:g} s of waiting: try again later")
        self.key = key


class EventNotFound(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """The store holds no event under this id."""

    def __init__(self, ref: int | str) -> None:
        super().__init__(f"no event {ref!r} in the store: it was never published, or trimmed or purged since")
        self.ref = ref


class NotADeadLetter(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """Only an event that ended FAILED or COMPLETED_WITH_ERRORS can be retried from the dead letters."""

    def __init__(self, ref: int | str, status: str) -> None:
        super().__init__(f"event {ref!r} is {status}, not a dead letter: there is nothing to retry")
        self.ref = ref
        self.status = status


class EventFailed(DurabusError):  # noqa: N818  (reads as the sentence it is)
    """The event whose result was awaited ended in the dead letters."""

    def __init__(self, event_id: str, status: str, errors: tuple[str, ...]) -> None:
        super().__init__(f"event {event_id} ended {status}: {errors[-1] if errors else 'no error was recorded'}")
        self.event_id = event_id
        self.status = status
        self.errors = errors


class HistoryFullError(DurabusError):
    """The bus holds ``max_history_size`` events and may not drop any; nothing was published."""


class PipelineError(DurabusError):
    """Spark, its Java, the jars or the lake are not as the pipeline needs them."""


class EventBusShutdownError(DurabusError):
    """The bus is shut down, or shutting down, and takes nothing new."""
