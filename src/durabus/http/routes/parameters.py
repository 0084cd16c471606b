"""Parameters of paths and queries that several routes share."""

from __future__ import annotations

from typing import Annotated

from litestar.params import PathParameter, QueryParameter

from durabus.http.schema.fields import MAX_ID, NAME_PATTERN, TAGS_PATTERN
from durabus.model.limits import MAX_NAME_CHARS

MAX_PAGE = 1_000
MAX_OFFSET = 10_000

PathId = Annotated[int, PathParameter(ge=1, le=MAX_ID, description="The event's number.")]
QueryBus = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN, description="Default: the server's bus."
    ),
]
QueryTags = Annotated[
    str | None,
    QueryParameter(pattern=TAGS_PATTERN, description="Comma-separated; an event matches if it has ANY of them."),
]
