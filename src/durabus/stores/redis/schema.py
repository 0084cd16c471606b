"""The function library that is made of the Lua files, and the schema: installing and verifying both."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from durabus.errors import SchemaError, StoreError
from durabus.stores.redis.connection import RedisAddress, command
from durabus.stores.redis.layout import KEYS, SCHEMA, TYPES
from durabus.stores.redis.pipelined_connection import PipelinedConnection

_FOLDER = files(__package__) / "functions"


_KEY = re.compile(rf"\btx\[({'|'.join(KEYS)})\]")


@cache
def library() -> tuple[str, str]:
    """Return name and code. The name changes with the code, so a process never runs functions of another version."""
    parts = [f"local SCHEMA = '{SCHEMA}'\n"]
    parts += [one.read_text(encoding="utf-8") for one in _lua_files(_FOLDER / "shared")]
    # Each verb is a block, so that its local names do not clash with those of another verb.
    parts += [f"do\n{one.read_text(encoding='utf-8')}end\n" for one in _lua_files(_FOLDER)]
    # Lua allows 200 local names in a function, so the names of the keys are none of them.
    places = {name: place for place, name in enumerate(KEYS, 1)}
    body = _KEY.sub(lambda used: f"tx[{places[used[1]]}]", "\n".join(parts))
    name = f"durabus_{SCHEMA}_{sha256(body.encode()).hexdigest()[:12]}"
    return name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{body}"


def _lua_files(folder: Traversable) -> list[Traversable]:
    return sorted((one for one in folder.iterdir() if one.name.endswith(".lua")), key=lambda one: one.name)


COUNTERS = ("id", "position", "lock_fence", "revision")
_CREATE = """
if redis.call('HEXISTS', KEYS[1], 'schema') == 1 then return 1 end
if redis.call('EXISTS', unpack(KEYS)) > 0 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
"""
"""One step, because another process may be creating the store too. Returns 0 if keys of another program are there."""


async def install(connection: PipelinedConnection, address: RedisAddress, keys: list[str]) -> None:
    """Load the functions, and create ``meta`` if the store is new. Raises ``SchemaError`` for another schema."""
    meta = keys[0]
    found = await connection.call(command("HGET", meta, "schema"), patient=False)
    if found is None:
        fields = ("schema", SCHEMA, *(part for counter in COUNTERS for part in (counter, 0)))
        if not await connection.call(command("EVAL", _CREATE, len(keys) - 1, *keys[:-1], *fields)):
            raise SchemaError(
                f"{address.shown} has keys {{{address.prefix}}}:… without the counters of a durabus store: "
                "remove them, or name another prefix in the URL (?prefix=…)"
            )
    name, code = library()
    if not await connection.call(command("FUNCTION", "LIST", "LIBRARYNAME", name)):
        await connection.call(command("FUNCTION", "LOAD", "REPLACE", code))
    await verify(connection, address, keys)


async def verify(connection: PipelinedConnection, address: RedisAddress, keys: list[str]) -> None:
    """Check the number of the schema, the types of all keys, and the code of the functions byte for byte."""
    values = await connection.call(command("HMGET", keys[0], "schema", *COUNTERS))
    found = _text(values[0])
    if found is None:
        raise SchemaError(f"there is no durabus store under the prefix {address.prefix!r} on {address.shown}: open it")
    if found != SCHEMA:
        raise SchemaError(
            f"the store {address.prefix!r} on {address.shown} has schema {found}, this durabus works with {SCHEMA}: "
            "use a version of durabus for that schema, or name another prefix in the URL (?prefix=…)"
        )
    odd = [name for name, value in zip(COUNTERS, values[1:], strict=True) if not (_text(value) or "").isdigit()]
    if odd:
        raise SchemaError(f"{keys[0]} on {address.shown} is damaged: {', '.join(odd)} must be whole numbers")
    kinds = await asyncio.gather(*(connection.call(command("TYPE", key)) for key in keys))
    for name, key, answer in zip(KEYS.values(), keys, kinds, strict=True):
        kind = _text(answer)
        if kind not in ("none", TYPES.get(name, "hash")):
            raise SchemaError(
                f"{key} on {address.shown} is a {kind}, not a {TYPES.get(name, 'hash')}: durabus did not create it"
            )
    await _verify_functions(connection, address)


async def _verify_functions(connection: PipelinedConnection, address: RedisAddress) -> None:
    name, code = library()
    listed = await connection.call(command("FUNCTION", "LIST", "LIBRARYNAME", name, "WITHCODE"))
    if not listed:
        raise SchemaError(f"the function library {name} is missing on {address.shown}: open the store again")
    fields = dict(zip(listed[0][::2], listed[0][1::2], strict=True))
    if _text(fields[b"library_code"]) != code:
        raise SchemaError(f"the function library {name} on {address.shown} was changed by hand: FUNCTION DELETE it")


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, bytes):
        raise StoreError(f"unexpected reply {value!r}")
    return value.decode()
