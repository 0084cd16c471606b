"""Every call of the API as a value: what to send, how to read the response, and whether and when it is sent again.

Both clients use these values, so requests are built in one place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import urlencode

import httpx2
import msgspec

from durabus.client import wire
from durabus.clock import monotonic
from durabus.errors import ApiError, ConfigurationError, DurabusError, LeaseLost, StoreUnavailableError
from durabus.model.claim import Claim, ClaimRef, new_token
from durabus.model.event import Event, new_event_id
from durabus.model.limits import Duration, check_tags, seconds, stored_text
from durabus.model.query import Counts, DeadLetterPage
from durabus.model.result import TransientError, UnrecoverableError
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled, Settlement

T = TypeVar("T")

CREATED, OK = 201, 200
ATTEMPTS = 6
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
TEMPORARY = frozenset({429, 502, 503, 504})
TIMEOUT = 30.0


class ApiCall(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request."""

    method: str
    path: str
    body: bytes | None = None
    read: Callable[[bytes], T]
    repeatable: bool
    """Whether sending it twice has the same effect as once, so that it can be repeated after a lost response."""
    patience: float = 0.0
    """Seconds that the server may take to respond, in addition to the usual timeout."""

    def result(self, status: int, content: bytes) -> T:
        """The value in a response. Raises ``ApiError`` for an error, also if a proxy responded for the server."""
        if status not in (OK, CREATED):
            raise ApiError(status, *wire.problem(content))
        try:
            return self.read(content)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ApiError(status, f"not a response of this API ({error}): is there a proxy in between?") from error


class EventFields(TypedDict, total=False):
    """Optional fields of an event, beside title and payload."""

    description: str | None
    type: str | None
    tags: Iterable[str]
    bus: str | None
    event_id: str | None
    metadata: Mapping[str, Any] | None
    priority: int
    delay: Duration
    at: datetime | None
    """When the event is due, with a time zone, in place of ``delay``."""
    expires: Duration | datetime | None
    """After this duration, or at this time, no worker begins the event any more."""
    max_retries: int | None
    """The number of attempts, as everywhere in the HTTP API."""
    parent_id: str | None
    idempotency_key: str | None


def event(title: str, payload: Any = None, fields: EventFields | None = None) -> dict[str, Any]:
    """One event as the API accepts it. Its ``event_id`` is made here, so that sending it can be repeated."""
    given: dict[str, Any] = {name: value for name, value in (fields or {}).items() if value is not None}
    if "tags" in given:
        given["tags"] = ",".join(check_tags(given["tags"]))
    if "delay" in given:
        given["delay"] = seconds(given["delay"], "delay")
    if "expires" in given and not isinstance(given["expires"], datetime):
        given["expires"] = seconds(given["expires"], "expires", allow_zero=False)
    return {"event_id": new_event_id(), **given, "title": title, "payload": payload}


def publish(events: Sequence[Mapping[str, Any]]) -> ApiCall[list[Event]]:
    """Publish events, all or none."""
    return _post("/events/batch", {"events": events}, wire.events, repeatable=all("event_id" in one for one in events))


def claim(
    *,
    worker_id: str,
    tags: Iterable[str] = (),
    limit: int = 1,
    lease: float | None = None,
    wait: float = 0.0,
    **more: Any,
) -> ApiCall[list[Claim]]:
    """Claim events. The token is made here, so that a repeat returns the claims of the lost response."""
    body = {"worker_id": worker_id, "tags": ",".join(check_tags(tags)), "limit": limit, "wait": wait, **more}
    if lease is not None:
        body["lease"] = lease
    return _post("/claims", {"token": new_token(), **body}, wire.claims, patience=wait)


def settle(settlements: Sequence[Settlement]) -> ApiCall[list[Settled | LeaseLost]]:
    """End claims, each independent of the others."""
    return _post("/claims/settle", {"settlements": [_settlement(one) for one in settlements]}, wire.outcomes)


def end(ref: ClaimRef, error: BaseException | None, spent: float) -> ApiCall[list[Settled | LeaseLost]]:
    """End a job: complete it, fail it, complete it with errors, or release it if it was interrupted."""
    document: dict[str, Any] = {"outcome": "complete", **_ref(ref), "execution_time_ms": spent}
    text = stored_text(f"{type(error).__name__}: {error}")
    match error:
        case None:
            pass
        case UnrecoverableError():
            document["errors"] = [text]
        case TransientError(retry_after=float() as delay):
            document |= {"outcome": "fail", "error_message": text, "delay": delay}
        case Exception():
            document |= {"outcome": "fail", "error_message": text}  # the server chooses the delay
        case _:
            document = {"outcome": "release", **_ref(ref)}
    return _post("/claims/settle", {"settlements": [document]}, wire.outcomes)


def renew(refs: Sequence[ClaimRef], *, lease: float | None = None) -> ApiCall[list[float | LeaseLost]]:
    """Renew the leases of claims."""
    return _post("/claims/renew", _refs(refs, lease), wire.renewals)


def start(refs: Sequence[ClaimRef], *, lease: float | None = None) -> ApiCall[list[float | LeaseLost]]:
    """Record that work began."""
    return _post("/claims/start", _refs(refs, lease), wire.renewals)


def get(path: str, read: Callable[[bytes], T]) -> ApiCall[T]:
    """Read something."""
    return ApiCall(method="GET", path=path, read=read, repeatable=True)


def stats(bus: str | None = None) -> ApiCall[Counts]:
    """Events by status."""
    return get("/stats" + query(bus=bus), wire.counts)


def dead_letters(*, limit: int = 100, offset: int = 0, bus: str | None = None) -> ApiCall[DeadLetterPage]:
    """Dead letters, newest first."""
    return get("/dead-letters" + query(limit=limit, offset=offset, bus=bus), wire.dead_letters)


def requeue(ids: Sequence[int]) -> ApiCall[list[Event]]:
    """Requeue dead letters."""
    return _post("/dead-letters/requeue", {"ids": ids}, wire.events)


def purge(older_than_days: float, bus: str | None = None) -> ApiCall[int]:
    """Delete dead letters. It is not repeated: the second response would not say how many were deleted."""
    body = {"older_than_days": older_than_days, "bus": bus}
    return _post("/dead-letters/purge", body, wire.purged, repeatable=False)


def reset(id_: int, reason: str) -> ApiCall[dict[str, Any]]:
    """Take an event from its worker. It is not repeated: by then the next worker may hold the event."""
    path = f"/events/{id_}/reset" + query(reason=reason)
    return ApiCall(method="POST", path=path, read=msgspec.json.decode, repeatable=False)


def cancel(id_: int, reason: str, *, children: bool = False) -> ApiCall[list[Event]]:
    """Cancel an event and, if asked, its live descendants."""
    path = f"/events/{id_}/cancel" + query(reason=reason, children="true" if children else None)
    return ApiCall(method="POST", path=path, read=wire.events, repeatable=True)


def show(id_: int, *, include_logs: bool = False, include_results: bool = False) -> ApiCall[dict[str, Any]]:
    """One event, in the format of the design document."""
    asked = {"include_logs": include_logs, "include_results": include_results}
    return get(
        f"/events/{id_}" + query(**{name: "true" for name, wanted in asked.items() if wanted}), msgspec.json.decode
    )


def list_events(**filters: Any) -> ApiCall[dict[str, Any]]:
    """A page of events, in the format of the design document."""
    return get("/events" + query(**filters), msgspec.json.decode)


def one(found: list[T]) -> T:
    """The only event of a batch of one."""
    (only,) = found
    return only


def _post(
    path: str, body: Any, read: Callable[[bytes], T], *, repeatable: bool = True, patience: float = 0.0
) -> ApiCall[T]:
    encoded = msgspec.json.encode(body)
    return ApiCall(method="POST", path=path, body=encoded, read=read, repeatable=repeatable, patience=patience)


def query(**values: Any) -> str:
    """The query of an address: those of the values that are given."""
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _refs(refs: Sequence[ClaimRef], lease: float | None) -> dict[str, Any]:
    return {"claims": [_ref(one) for one in refs], **({} if lease is None else {"lease": lease})}


def _ref(ref: ClaimRef) -> dict[str, Any]:
    return {"id": ref.id, "token": ref.token, "fence": ref.fence}


def _settlement(settlement: Settlement) -> dict[str, Any]:
    ref = _ref(settlement.ref)
    match settlement:
        case Complete():
            spent = {"execution_time_ms": settlement.execution_time_ms, "status_code": settlement.status_code}
            return {"outcome": "complete", **ref, "errors": settlement.errors, **spent, **_reason(settlement)}
        case Fail():
            spent = {"execution_time_ms": settlement.execution_time_ms, "status_code": settlement.status_code}
            return {"outcome": "fail", **ref, "error_message": settlement.error, "delay": settlement.delay, **spent}
        case Release():
            return {"outcome": "release", **ref, "delay": settlement.delay, **_reason(settlement)}
        case Cancel():
            return {"outcome": "cancel", **ref, "reason": settlement.reason}


def _reason(settlement: Complete | Release) -> dict[str, str]:
    return {} if settlement.reason is None else {"reason": settlement.reason}


def pauses() -> Iterator[float]:
    """Seconds between attempts. They grow and are random, so that clients do not repeat at the same time."""
    for attempt in range(ATTEMPTS - 1):
        yield min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def is_temporary(status: int) -> bool:
    """Whether a status means that the server may accept the request later."""
    return status in TEMPORARY


def is_away(error: DurabusError) -> bool:
    """Whether an error means that the server cannot be used now, rather than that it refused the request."""
    return isinstance(error, StoreUnavailableError) or (isinstance(error, ApiError) and is_temporary(error.status))


def unreachable(url: str, error: Exception) -> StoreUnavailableError:
    """The error when no attempt got a response."""
    reason = str(error) or type(error).__name__
    return StoreUnavailableError(f"the API at {url} does not respond ({reason}): is `durabus serve` running there?")


def request_options(call: ApiCall[Any], timeout: float) -> dict[str, Any]:
    """The options of a request, for both HTTP clients."""
    headers = {"Content-Type": "application/json"} if call.body is not None else {}
    return {"content": call.body, "headers": headers, "timeout": timeout + call.patience}


def client_options(url: str, token: str | None, transport: Any) -> dict[str, Any]:
    """The options of an HTTP client. The token is sent in a header, never in an address."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"url={url!r}: must begin with http:// or https://")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    made: dict[str, Any] = {"base_url": url, "headers": headers, "limits": httpx2.Limits(max_connections=100)}
    return made if transport is None else {**made, "transport": transport}


class ClaimedJob:
    """The claimed event of a job, and when its lease ends by the local clock."""

    def __init__(self, claim: Claim, lease: float) -> None:
        self.claim = claim
        self.event = claim.event
        self._lease = lease
        self._ends = monotonic() + lease
        self._begun = 0.0
        self._lost = False

    @property
    def payload(self) -> Any:
        """The payload of the event."""
        return self.event.payload

    @property
    def fence(self) -> int:
        """The fencing token: other systems can use it to refuse writes of earlier workers."""
        return self.event.fence
