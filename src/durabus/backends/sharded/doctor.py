"""What the operator of a sharded store should know: what each shard's doctor says."""

from __future__ import annotations

import msgspec

from durabus.backends.sharded.address import parse_url
from durabus.store.doctor import Finding
from durabus.store.doctor import examine as examine_shard


async def examine(url: str) -> list[Finding]:
    """The findings of all shards, each with its number."""
    return [
        msgspec.structs.replace(finding, setting=f"shard {number}: {finding.setting}")
        for number, part in enumerate(parse_url(url))
        for finding in await examine_shard(part)
    ]
