"""Request bodies, decoded strictly: a number is not a text, and a field that nobody knows is an error."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec
from litestar import Request

from durabus.server.problems import Problem

T = TypeVar("T", bound=msgspec.Struct)


async def decoded(request: Request[Any, Any, Any], wanted: type[T]) -> T:
    """The body as ``wanted``; the gate has made sure that it is UTF-8 and not too deep."""
    body = await request.body()
    if not body:
        raise Problem(400, "a JSON object is needed as the body")
    try:
        document: T = _decoder(wanted).decode(body)
    except msgspec.DecodeError as error:
        raise Problem(400, str(error)) from error
    return document


@cache
def _decoder(wanted: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted)
