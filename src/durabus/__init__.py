"""durabus: a durable event bus for Python."""

from durabus.bus.event_bus import EventBus
from durabus.bus.handle import Handle
from durabus.bus.sync_bus import SyncEventBus
from durabus.clock import Clock, ManualClock, SystemClock
from durabus.errors import (
    ConfigurationError,
    DamagedLogError,
    DuplicateHandlerError,
    DurabusError,
    EventBusShutdownError,
    EventCancelled,
    EventEnded,
    EventFailed,
    EventNotFound,
    EventNotStored,
    HistoryFullError,
    InvalidEventError,
    InvalidPayloadError,
    LeaseLost,
    LockHeld,
    NoAnswer,
    NotADeadLetter,
    PayloadDecodeError,
    ScheduleChanged,
    ScheduleNotFound,
    SchemaError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    UnknownStoreError,
    UnsupportedByStore,
)
from durabus.model.event import Event, NewEvent, new_event
from durabus.model.log_entry import LogEntry
from durabus.model.policies import BreakerPolicy, RetryPolicy
from durabus.model.query import Counts, DeadLetterPage, EventPage, EventQuery
from durabus.model.result import (
    BatchFailed,
    HandlerResult,
    MaxDepthError,
    Snooze,
    Success,
    TransientError,
    UnrecoverableError,
)
from durabus.model.statuses import (
    Action,
    Completion,
    EventMode,
    EventStatus,
    HandlerMode,
    ResultMode,
    ResultStatus,
    Takeover,
)
from durabus.model.upcasting import upcast
from durabus.queue.dead_letters import DLQInspector
from durabus.queue.event_manager import EventHandler, EventManager
from durabus.queue.event_queue import EventQueue
from durabus.queue.locks import LockManager
from durabus.queue.projections import EventLogProjectionBuilder, ProjectionStatus
from durabus.schedules.schedule import Schedule
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.store.features import Features
from durabus.worker.batch import BatchContext
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.handler import Context, SyncContext
from durabus.worker.steps import StepError
from durabus.worker.telemetry import Tracing

__all__ = [
    "Action",
    "BatchContext",
    "BatchFailed",
    "BreakerPolicy",
    "Clock",
    "Completion",
    "ConfigurationError",
    "Context",
    "Counts",
    "DLQInspector",
    "DamagedLogError",
    "DeadLetterPage",
    "Dispatcher",
    "DuplicateHandlerError",
    "DurabusError",
    "Event",
    "EventBus",
    "EventBusShutdownError",
    "EventCancelled",
    "EventEnded",
    "EventFailed",
    "EventHandler",
    "EventLogProjectionBuilder",
    "EventManager",
    "EventMode",
    "EventNotFound",
    "EventNotStored",
    "EventPage",
    "EventQuery",
    "EventQueue",
    "EventStatus",
    "EventStore",
    "Features",
    "Handle",
    "HandlerMode",
    "HandlerResult",
    "HistoryFullError",
    "InvalidEventError",
    "InvalidPayloadError",
    "LeaseLost",
    "LockHeld",
    "LockManager",
    "LogEntry",
    "ManualClock",
    "MaxDepthError",
    "NewEvent",
    "NoAnswer",
    "NotADeadLetter",
    "PayloadDecodeError",
    "ProjectionStatus",
    "ResultMode",
    "ResultStatus",
    "RetryPolicy",
    "Schedule",
    "ScheduleChanged",
    "ScheduleNotFound",
    "SchemaError",
    "Snooze",
    "StepError",
    "StoreClosedError",
    "StoreError",
    "StoreUnavailableError",
    "Success",
    "SyncContext",
    "SyncEventBus",
    "SystemClock",
    "Takeover",
    "Tracing",
    "TransientError",
    "UnknownStoreError",
    "UnrecoverableError",
    "UnsupportedByStore",
    "new_event",
    "open_store",
    "upcast",
]

__version__ = "0.1.0"
"""The same as in pyproject.toml. Python would read it from there only with a module that takes long to import."""
