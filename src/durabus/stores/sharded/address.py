"""Parses ``sharded://sqlite:///0.db|sqlite:///1.db``: the URLs of the shards in order, with bars between them."""

from __future__ import annotations

from urllib.parse import urlsplit

from durabus.errors import ConfigurationError

SCHEME = "sharded://"
MAX_SHARDS = 16
ONE_LOG = frozenset({"kafka", "nats"})


def parse_url(url: str) -> list[str]:
    """Return the URLs of the shards. No error shows a URL: it may hold a password."""
    parts = url.removeprefix(SCHEME).split("|")
    if not all("://" in part for part in parts):
        raise ConfigurationError(
            "sharded: write the stores' URLs with a bar between them, as sharded://sqlite:///0.db|sqlite:///1.db"
        )
    if len(parts) > MAX_SHARDS:
        raise ConfigurationError(f"sharded: {len(parts)} shards, at most {MAX_SHARDS} are possible")
    for number, part in enumerate(parts):
        scheme = urlsplit(part).scheme
        if scheme == "sharded":
            raise ConfigurationError(f"sharded: shard {number} is sharded itself: name all stores in one URL")
        if scheme in ONE_LOG:
            # These stores trim by the positions that readers save; those of a sharded store are vectors.
            raise ConfigurationError(
                f"sharded: shard {number} is {scheme}://, which cannot be one: give each bus a prefix there instead"
            )
    if "memory" not in {urlsplit(part).scheme for part in parts} and len(set(parts)) < len(parts):
        raise ConfigurationError("sharded: one store is named twice, but every shard needs a store of its own")
    return parts
