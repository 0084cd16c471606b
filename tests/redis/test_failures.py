"""Every refusal of a server has a text that says what to do."""

import pytest
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from durabus.errors import SchemaError, StoreError, StoreUnavailableError
from durabus.stores.redis.connection import is_passing, moved_to, refused

CASES = [
    (AuthenticationError("invalid username-password pair"), StoreError, "does not accept the user or password"),
    (NoPermissionError("no rights to run 'fcall'"), StoreError, "lacks a right"),
    (OutOfMemoryError("command not allowed"), StoreUnavailableError, "raise maxmemory, trim history or purge"),
    (ReadOnlyError("You can't write"), StoreUnavailableError, "the address of the primary"),
    (BusyLoadingError("loading"), StoreUnavailableError, "still loads its data"),
    (ResponseError("MISCONF Errors writing to the AOF file: No space"), StoreUnavailableError, "No space"),
    (ResponseError("NOREPLICAS Not enough good replicas"), StoreUnavailableError, "cannot serve this now"),
    (ClusterDownError("Hash slot not served"), StoreUnavailableError, "cannot serve this now"),
    (ResponseError("WRONGTYPE Operation against a key"), SchemaError, "not of the type that durabus gave it"),
    (ResponseError("The ID specified in XADD is equal or smaller"), SchemaError, "set position in meta"),
    (ResponseError("unknown command 'FUNCTION'"), SchemaError, "Redis 7.0 or newer"),
    (ResponseError("DURABUSGONE"), SchemaError, "accepted events are lost"),
    (ResponseError("DURABUSSCHEMA 7"), SchemaError, "has schema 7"),
    (ResponseError("something new"), StoreError, "refused the call: something new"),
]


@pytest.mark.parametrize(("error", "kind", "said"), CASES, ids=[str(case[0]) for case in CASES])
def test_a_refusal_says_what_to_do(error: Exception, kind: type[StoreError], said: str) -> None:
    meant = refused("redis://h", error)
    assert type(meant) is kind
    assert said in str(meant)
    assert "redis://h" in str(meant)


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (BusyLoadingError("loading"), True),
        (ReadOnlyError("no"), True),
        (TryAgainError("Multiple keys"), True),
        (MasterDownError("Link"), True),
        (OutOfMemoryError("no"), False),
        (ResponseError("MISCONF"), False),
        (ResponseError("DURABUSGONE"), False),
    ],
)
def test_only_what_may_pass_is_waited_for(error: Exception, *, passing: bool) -> None:
    assert is_passing(error) is passing


def test_a_cluster_says_where_the_keys_are() -> None:
    assert moved_to(MovedError("3999 10.0.0.1:6381")) == ("10.0.0.1", 6381)
    assert moved_to(MovedError("3999 ::1:6381")) == ("::1", 6381)
    assert moved_to(AskError("3999 10.0.0.1:6381")) is None
    assert moved_to(ResponseError("ERR no")) is None
