"""One step of one peer in a process of its own: ``python -m benchmarks.peers.child PEER STEP URL COUNT``."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

import msgspec

from benchmarks.bench import same_gc
from benchmarks.peers.peer import About, peer
from benchmarks.turns import next_line, ready


async def run(name: str, step: str, url: str, count: int) -> About | float | int | None:
    asked = peer(name)
    match step:
        case "about":
            await ready()
            return About.of(asked)
        case "install":
            await ready()
            await asked.install(url)
            return None
        case "publish-single":
            await ready()
            return await asked.publish_single(url, count)
        case "publish-batches":
            await ready()
            return await asked.publish_batches(url, count)
        case "drain":
            return await asked.drain(url, ready, next_line)
    raise ValueError(f"no such step {step!r}")


def main(name: str, step: str, url: str, count: str) -> None:
    run_loop = import_module("uvloop").run if peer(name).uvloop else asyncio.run
    with same_gc():
        found = run_loop(run(name, step, url, int(count)))
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
