"""The commands in control records: one struct for each writing verb of the contract, with the same field names."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from durabus.errors import InvalidEventError
from durabus.model.claim import ClaimRef, ClaimRequest, HandlerClaim, HandlerClaimRequest, LockClaim, OfferRequest
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import HandlerSettlement
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef
from durabus.stores.replicated_log.core import ReplicatedLogCore
from durabus.stores.replicated_log.wire import PackedKeep, PackedSettlement, Ref, unpacked_keep

T = TypeVar("T")

LOG_FORMAT = 1
"""The version of the commands. A node that reads a larger one stops."""


class Command(msgspec.Struct, frozen=True, array_like=True):
    """A verb with its arguments."""

    def apply(self, core: ReplicatedLogCore) -> Any:
        """Run the verb on a replica. Returns or raises what the contract says."""
        verb = getattr(core, str(self.__struct_config__.tag))
        return finish(verb(**msgspec.structs.asdict(self)))


class RegisterHandlers(Command, frozen=True, tag="register_handlers"):
    bus: str
    node: str
    handlers: tuple[HandlerInfo, ...]
    kept_for: float | None


class UnregisterHandler(Command, frozen=True, tag="unregister_handler"):
    bus: str
    handler_id: str


class StopBus(Command, frozen=True, tag="stop_bus"):
    bus: str


class ArchiveBuses(Command, frozen=True, tag="archive_buses"):
    stopped_for: float
    limit: int


class RemoveEvent(Command, frozen=True, tag="remove_event"):
    ref: EventRef


class TrimEventHistory(Command, frozen=True, tag="trim_event_history"):
    bus: str
    older_than: float
    limit: int


class CleanupExcessEvents(Command, frozen=True, tag="cleanup_excess_events"):
    bus: str
    keep: int
    limit: int
    node: str | None


class ClaimNextEvents(Command, frozen=True, tag="claim_next_events"):
    request: ClaimRequest


class StartEvents(Command, frozen=True, tag="start_events"):
    refs: tuple[Ref, ...]

    def apply(self, core: ReplicatedLogCore) -> Any:
        return finish(core.start_events([ClaimRef(*ref) for ref in self.refs]))


class RenewEventClaims(Command, frozen=True, tag="renew_event_claims"):
    refs: tuple[Ref, ...]
    lease: float

    def apply(self, core: ReplicatedLogCore) -> Any:
        return finish(core.renew_event_claims([ClaimRef(*ref) for ref in self.refs], lease=self.lease))


class SettleEvents(Command, frozen=True, tag="settle_events"):
    settlements: tuple[PackedSettlement, ...]
    then_claim: ClaimRequest | None

    def apply(self, core: ReplicatedLogCore, *, with_entries: bool = False) -> SettleAnswer:
        """Run the verb. ``with_entries`` is not in the log: only the node of the caller builds the log entries."""
        return core.settle(self.settlements, self.then_claim, with_entries=with_entries)


class ExpireEvents(Command, frozen=True, tag="expire_events"):
    max_attempts: int | None
    limit: int


class ShowPresence(Command, frozen=True, tag="show_presence"):
    incarnation: str


class WithdrawPresence(Command, frozen=True, tag="withdraw_presence"):
    incarnation: str


class EndProcess(Command, frozen=True, tag="end_process"):
    incarnation: str
    max_attempts: int | None
    limit: int


class ResetEvent(Command, frozen=True, tag="reset_event"):
    ref: EventRef
    reason: str


class CancelEvents(Command, frozen=True, tag="cancel_events"):
    refs: tuple[EventRef, ...]
    reason: str


class KeepResults(Command, frozen=True, tag="keep_results"):
    kept: tuple[PackedKeep, ...]

    def apply(self, core: ReplicatedLogCore) -> Any:
        return finish(core.keep_results([unpacked_keep(one) for one in self.kept]))


class ClaimNextHandlerResult(Command, frozen=True, tag="claim_next_handler_result"):
    request: HandlerClaimRequest


class RenewHandlerClaims(Command, frozen=True, tag="renew_handler_claims"):
    claims: tuple[HandlerClaim, ...]
    lease: float


class ClaimOfferedHandlers(Command, frozen=True, tag="claim_offered_handlers"):
    request: OfferRequest


class SettleHandlers(Command, frozen=True, tag="settle_handlers"):
    settlements: tuple[HandlerSettlement, ...]


class CompleteEventIfDone(Command, frozen=True, tag="complete_event_if_done"):
    ref: Ref
    handler_ids: tuple[str, ...]

    def apply(self, core: ReplicatedLogCore) -> Any:
        return finish(core.complete_event_if_done(ClaimRef(*self.ref), self.handler_ids))


class CleanupResults(Command, frozen=True, tag="cleanup_results"):
    limit: int


class ClaimLock(Command, frozen=True, tag="claim_lock"):
    key: str
    worker_id: str
    token: str
    lease: float


class RenewLock(Command, frozen=True, tag="renew_lock"):
    claim: LockClaim
    lease: float


class ReleaseLock(Command, frozen=True, tag="release_lock"):
    claim: LockClaim


class SavePosition(Command, frozen=True, tag="save_position"):
    name: str
    position: str | None
    lock: LockClaim


class TrimLog(Command, frozen=True, tag="trim_log"):
    until: str
    older_than: float
    limit: int
    ignoring: str


class RequeueDeadLetters(Command, frozen=True, tag="requeue_dead_letters"):
    refs: tuple[EventRef, ...]


class PurgeDeadLetters(Command, frozen=True, tag="purge_dead_letters"):
    created_until_ts: float
    bus: str | None
    limit: int


class PurgeDeadLettersById(Command, frozen=True, tag="purge_dead_letters_by_id"):
    ids: tuple[int, ...]


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """The settings that a node expects the log to have. The first ``Join`` in the log sets them for all nodes."""

    format: int
    cluster: str
    max_history: int


class Now(Command, frozen=True, tag="now"):
    """Return the log's time."""


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """Metadata that is too large for a header of its event. The event follows on the public lane."""

    event_id: str
    metadata_json: str


class Snapshotted(msgspec.Struct, frozen=True, array_like=True, tag="snapshotted"):
    """A snapshot is complete. Records that it covers may be trimmed, and the wait for the next one begins."""

    position: tuple[int, ...]
    applied: int
    at_ts: float
    public_kept: float


Written = (
    RegisterHandlers
    | UnregisterHandler
    | StopBus
    | ArchiveBuses
    | RemoveEvent
    | TrimEventHistory
    | CleanupExcessEvents
    | ClaimNextEvents
    | StartEvents
    | RenewEventClaims
    | SettleEvents
    | ExpireEvents
    | ShowPresence
    | WithdrawPresence
    | EndProcess
    | ResetEvent
    | CancelEvents
    | KeepResults
    | ClaimNextHandlerResult
    | RenewHandlerClaims
    | ClaimOfferedHandlers
    | SettleHandlers
    | CompleteEventIfDone
    | CleanupResults
    | ClaimLock
    | RenewLock
    | ReleaseLock
    | SavePosition
    | TrimLog
    | RequeueDeadLetters
    | PurgeDeadLetters
    | PurgeDeadLettersById
    | Now
    | Attach
    | Join
    | Snapshotted
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Written])
_ONE = msgspec.msgpack.Decoder(Written)


def encode_command(command: Written) -> msgspec.Raw:
    """Encode one command. Raises here if it cannot be read back: such a record would stop every node."""
    try:
        written = _ENCODER.encode(command)
        _ONE.decode(written)
    except (UnicodeError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidEventError(f"{type(command).__name__} cannot be written: {error}") from error
    return msgspec.Raw(written)


def encode_commands(commands: list[msgspec.Raw]) -> bytes:
    """Encode the commands of one record."""
    return _ENCODER.encode(commands)


def decode_commands(data: bytes) -> list[Written]:
    """Decode the commands of one record. Raises ``msgspec.MsgspecError`` if they are damaged."""
    return _DECODER.decode(data)


def finish(verb: Coroutine[Any, Any, T]) -> T:
    """Run a verb of the memory store to its end. Its verbs never wait."""
    try:
        verb.send(None)
    except StopIteration as ended:
        answer: T = ended.value
        return answer
    verb.close()
    raise RuntimeError("a verb of the memory store waited: the replicated log cannot apply it")
