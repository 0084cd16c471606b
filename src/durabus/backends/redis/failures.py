"""What a server's refusal or silence means to a caller."""

from __future__ import annotations

from collections.abc import Callable

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

from durabus.errors import SchemaError, StoreError, StoreUnavailableError

MISSING_FUNCTION = "Function not found"
_PASSING = (AskError, BusyLoadingError, ClusterDownError, ReadOnlyError, TryAgainError)
_PASSING_TEXTS = ("BUSY ", "NOREPLICAS")


def is_passing(error: Exception) -> bool:
    """Whether a server that starts, fails over or moves slots may take the same call a moment later."""
    return isinstance(error, _PASSING) or str(error).startswith(_PASSING_TEXTS)


def is_final(error: Exception) -> bool:
    """Whether connecting again is of no use, because the server does not want us."""
    return isinstance(error, AuthenticationError | NoPermissionError)


def moved_to(error: Exception) -> tuple[str, int] | None:
    """Where a node of a cluster says that the keys are."""
    return (str(error.host), int(error.port)) if isinstance(error, MovedError) else None


def unreachable(shown: str, error: BaseException | None) -> StoreUnavailableError:
    """No connection could be made."""
    why = "" if error is None else f": {str(error) or type(error).__name__}"
    return StoreUnavailableError(f"no connection to {shown}{why}. Is the server running? Nothing was sent")


def unanswered(shown: str, seconds: float, error: BaseException | None) -> StoreUnavailableError:
    """The call was sent, and no answer came."""
    why = f" ({error})" if error is not None and str(error) else ""
    return StoreUnavailableError(
        f"no answer from {shown} within {seconds:g} s{why}: whether the call took effect is not known, "
        "repeating it is safe"
    )


def refused(shown: str, error: Exception) -> StoreError:
    """The server said no, and took nothing."""
    text = str(error)
    for meant, make in _REFUSALS:
        if text.startswith(meant) if isinstance(meant, str) else isinstance(error, meant):
            return make(shown, text)
    return StoreError(f"{shown} refused the call: {text}")


def _gone(shown: str, _text: str) -> StoreError:
    return SchemaError(
        f"the data of this store on {shown} are gone (flushed, evicted, or restarted without persistence): "
        "what was accepted is lost. Open the store again to begin anew"
    )


def _other_schema(shown: str, text: str) -> StoreError:
    found = text.removeprefix("DURABUSSCHEMA ")
    return SchemaError(f"the store on {shown} has schema {found}, not the one this durabus works with")


def _stranger(shown: str, text: str) -> StoreError:
    return StoreError(f"{shown} does not accept the user or password of the URL: {text}")


def _forbidden(shown: str, text: str) -> StoreError:
    return StoreError(
        f"the user of {shown} lacks a right (it needs FCALL, FUNCTION LOAD, its keys and channels): {text}"
    )


def _full(shown: str, text: str) -> StoreError:
    return StoreUnavailableError(
        f"{shown} is out of memory and took nothing: raise maxmemory, trim history or purge dead letters ({text})"
    )


def _replica(shown: str, _text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} is a read-only replica and took nothing: give the address of the primary")


def _loading(shown: str, _text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} still loads its data and took nothing: try again later")


def _no_disk(shown: str, text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} cannot write to its disk and took nothing: {text}")


def _wrong_type(shown: str, text: str) -> StoreError:
    return SchemaError(f"a key of the store on {shown} is not of the type that durabus gave it: {text}")


def _foreign_entry(shown: str, text: str) -> StoreError:
    return SchemaError(
        f"somebody else wrote to the event_log stream of the store on {shown}, which takes no entry any more: "
        f"XDEL the foreign ones, and set position in meta to the number of the last one ({text})"
    )


def _too_old(shown: str, text: str) -> StoreError:
    return SchemaError(f"{shown} does not know functions: Redis 7.0 or newer is needed, or Valkey ({text})")


def _not_now(shown: str, text: str) -> StoreError:
    return StoreUnavailableError(f"{shown} cannot serve this now and took nothing: {text}")


_REFUSALS: list[tuple[type[Exception] | tuple[type[Exception], ...] | str, Callable[[str, str], StoreError]]] = [
    ("DURABUSGONE", _gone),
    ("DURABUSSCHEMA", _other_schema),
    (AuthenticationError, _stranger),
    (NoPermissionError, _forbidden),
    (OutOfMemoryError, _full),
    (ReadOnlyError, _replica),
    (BusyLoadingError, _loading),
    ("MISCONF", _no_disk),
    ("WRONGTYPE", _wrong_type),
    ("The ID specified in XADD", _foreign_entry),
    ("unknown command", _too_old),
    ("NOREPLICAS", _not_now),
    ("BUSY ", _not_now),
    (_PASSING, _not_now),
]
