"""The Lua files as one function library, named after its content."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from durabus.backends.redis.layout import KEYS, SCHEMA

_FOLDER = files(__package__) / "functions"


@cache
def library() -> tuple[str, str]:
    """Name and code. The name changes with the code, so a node never runs functions of another version."""
    places = ", ".join(str(place) for place in range(1, len(KEYS) + 1))
    parts = [f"local {', '.join(KEYS)} = {places}\nlocal SCHEMA = '{SCHEMA}'\n"]
    parts += [one.read_text(encoding="utf-8") for one in _lua_files(_FOLDER / "shared")]
    # a block each, so that what is local to a verb does not meet another verb's
    parts += [f"do\n{one.read_text(encoding='utf-8')}end\n" for one in _lua_files(_FOLDER)]
    body = "\n".join(parts)
    name = f"durabus_{SCHEMA}_{sha256(body.encode()).hexdigest()[:12]}"
    return name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{body}"


def _lua_files(folder: Traversable) -> list[Traversable]:
    return sorted((one for one in folder.iterdir() if one.name.endswith(".lua")), key=lambda one: one.name)
