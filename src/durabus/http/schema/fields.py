"""Types of the fields in requests. The OpenAPI document shows what values they allow."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta

from durabus.model.limits import (
    MAX_ATTEMPTS,
    MAX_NAME_CHARS,
    MAX_PRIORITY,
    MAX_SECONDS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    check_tags,
)

MAX_ID = 2**63 - 1
MAX_TITLE_CHARS = 255
MAX_TEXT_CHARS = 16_384
MAX_STATUS_CODE = 999
MAX_MILLISECONDS = 1e12
MAX_LEASE = 86_400.0
MAX_WAIT = 60.0
MAX_CLAIMS = 1_000
"""Maximum number of claims in one request. Ten thousand would delay all other requests for seconds."""

# Word characters of any language and ASCII punctuation; a tag has no comma and no space.
NAME_PATTERN = r"^[\w!-~]([\w -~]*[\w!-~])?(?!\n)$"
WORKER_PATTERN = r"^[!-~]+(?!\n)$"
_TAG = rf"[\w!-+\--~]{{1,{MAX_TAG_CHARS}}}"
TAGS_PATTERN = rf"^{_TAG}(, ?{_TAG}){{0,{MAX_TAGS - 1}}}(?!\n)$"
TAGS_OR_NONE_PATTERN = rf"^({_TAG}(, ?{_TAG}){{0,{MAX_TAGS - 1}}})?(?!\n)$"
HEX_PATTERN = r"^[0-9a-f]{32,64}(?!\n)$"
UUID_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?!\n)$"

Title = Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARS)]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)]
TypeName = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[\w!-)+,\-/-~]+(\.[\w!-)+,\-/-~]+)*(?!\n)$")
]
WorkerId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        pattern=WORKER_PATTERN,
        description="The name of the worker: `{hostname}:{pid}`.",
        examples=["worker-02:8742"],
    ),
]
TagsOrNone = Annotated[
    str, Meta(pattern=TAGS_OR_NONE_PATTERN, description="Comma-separated.", examples=["email,priority-high"])
]
ClaimToken = Annotated[str, Meta(pattern=HEX_PATTERN, description="The secret of a claim.")]
Uuid = Annotated[str, Meta(pattern=UUID_PATTERN)]
Id = Annotated[int, Meta(ge=1, le=MAX_ID)]
Fence = Annotated[int, Meta(ge=0, le=MAX_ID)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
MAX_RETRIES_MEANS = (
    "How many attempts the event has: with 3, the third failure ends it as FAILED. The Python library calls this "
    "number `max_attempts`; its `RetryPolicy(max_retries=3)` allows 4 attempts."
)
Retries = Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS, description=MAX_RETRIES_MEANS)]
RetryLimit = Annotated[int, Meta(description=MAX_RETRIES_MEANS)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
_WITH_ZONE = "ISO 8601 with a time zone."
DueAt = Annotated[datetime, Meta(tz=True, description=_WITH_ZONE, examples=["2099-01-31T09:00:00Z"])]
ExpiresAt = Annotated[datetime, Meta(tz=True, description=_WITH_ZONE, examples=["2100-01-31T09:00:00Z"])]
ExpiresAfter = Annotated[
    float, Meta(gt=0, le=MAX_SECONDS, description="Seconds after which no worker begins the event.")
]
Lease = Annotated[float, Meta(gt=0, le=MAX_LEASE, description="Seconds.")]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT, description="Seconds to wait for work.")]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_MILLISECONDS)]
StatusCode = Annotated[int, Meta(ge=0, le=MAX_STATUS_CODE)]
BatchSize = Annotated[int, Meta(ge=1, le=MAX_CLAIMS)]


@lru_cache(maxsize=1024)
def split_tags(tags: str | None) -> tuple[str, ...]:
    """Split a comma-separated string into tags. Spaces after a comma are allowed.

    The result is cached, because a publisher sends the same tags again and again.
    """
    return check_tags(tag.strip(" ") for tag in tags.split(",")) if tags else ()


def join_tags(tags: tuple[str, ...]) -> str:
    """Join tags with commas, as the API sends them. No tag contains a comma."""
    return ",".join(tags)


def type_of(title: str) -> str:
    """Turn a title into an event type. Characters that a type cannot have become underscores."""
    text = "".join(char if char.isprintable() and char not in "* " else "_" for char in title)
    return ".".join(segment or "_" for segment in text.split("."))


def as_number(value: float | None) -> Any:
    """A float that is a whole number as an integer, as the client sent it."""
    return int(value) if value is not None and value.is_integer() else value
