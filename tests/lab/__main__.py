"""The crash lab: rounds on one kind of store until enough faults have happened. The history checker judges each round.

::

    python -m tests.lab sqlite            # all of it: some minutes
    python -m tests.lab redis --quick     # one small round
    python -m tests.lab nats --seed 7     # other lives, deaths and cuts
    python -m tests.lab sqlite --saga     # 2,000 sagas of steps and children, and a kill every 500 ms
    python -m tests.lab kafka --pair      # a kill between two handlers of 200 events, with soon and with strict results

Ends with code 1 if a promise was broken, or if less happened than the floors below.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import sqlite3
import sys
import tempfile
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path

import msgspec
from tests.lab import disk
from tests.lab.round import Disturbances, Plan, Report, Round
from tests.lab.saga import PairRound, SagaPlan, SagaRound
from tests.servers.proxy import Proxy

from durabus.clock import monotonic
from durabus.testing.history.history import Violation, encode
from durabus.testing.servers.redis import RedisServer
from durabus.testing.servers.server import SERVERS, Server, make_server

SHOWN = 10
FOLDER = Path("build/lab")
QUICK = 12
"""The number of kills in a quick run."""
EVENTS_OF_PAIRS = 200
TOO_LARGE = os.strerror(errno.EFBIG)
"""How a server's log shows that the disk refused a write."""

VERBS = {
    "steps remembered": 200,
    "asleep": 200,
    "waits met": 100,
    "waits given up": 20,
    "verdicts of batches": 200,
    "handlers run for another worker": 50,
    "cancelled": 50,
    "children cancelled": 5,
}
"""How often the handlers of all rounds together must have used each verb, on every kind of store."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """How the lab disturbs a kind of store, and which faults must have happened at the end."""

    rounds: list[Plan]
    floors: dict[str, int]


KINDS = {
    "sqlite": Kind(
        rounds=[Plan(kills=105, freezes=6, full_disks=10, broken_syncs=8)] * 10,
        floors={
            "kills": 1000,
            "freezes": 50,
            "takeovers": 300,
            "stale writes refused": 300,
            "full disks": 80,
            "broken syncs": 60,
            "writes refused by the disk": 100,
        },
    ),
    "postgresql": Kind(
        rounds=[
            *[Plan(kills=55, freezes=2, server_kills=6, cuts=4, full_disks=2, skew=60.0)] * 10,
            # Less dense and much longer: about one kill a second.
            Plan(
                kills=100,
                events=50_000,
                keys=500,
                lives=(1.0, 6.0),
                freezes=5,
                server_kills=5,
                skew=60.0,
                batch=50,
                failpoints=False,
                within=900.0,
            ),
        ],
        floors={
            "events": 50_000,
            "kills": 600,
            "freezes": 20,
            "server kills": 55,
            "network cuts": 30,
            "stale writes refused": 300,
            "full disks": 15,
            "writes refused by the disk": 15,
        },
    ),
    "redis": Kind(
        rounds=[Plan(kills=55, freezes=2, server_kills=6, cuts=4, skew=60.0)] * 10,
        floors={"kills": 500, "freezes": 15, "server kills": 50, "network cuts": 30, "stale writes refused": 300},
    ),
    "nats": Kind(
        rounds=[
            Plan(kills=55, freezes=2, server_kills=6, cuts=4, skew=60.0, lease=2.0, lives=(0.05, 1.0), tolerance=0.5)
        ]
        * 10,
        floors={"kills": 500, "freezes": 15, "server kills": 50, "network cuts": 30, "stale writes refused": 300},
    ),
    "kafka": Kind(
        rounds=[
            Plan(kills=28, freezes=3, server_kills=2, skew=60.0, lease=5.0, lives=(0.5, 3.0), tolerance=0.5, within=600)
        ]
        * 4,
        floors={"kills": 100, "freezes": 3, "server kills": 5, "stale writes refused": 300},
    ),
}


def small(plan: Plan, kills: int) -> Plan:
    """Return a plan with few faults of every kind."""
    few = {name: min(getattr(plan, name), 2) for name in ("freezes", "server_kills", "cuts", "full_disks")}
    return msgspec.structs.replace(plan, kills=kills, broken_syncs=min(plan.broken_syncs, 2), **few)


async def one_round(kind: str, plan: Plan, folder: Path, seed: int) -> Report:
    """Run a round on a fresh store, with a fresh server."""
    if kind == "sqlite":
        return await sqlite_round(plan, folder, seed)
    with ExitStack() as stack:
        server = stack.enter_context(server_of(kind, folder / kind))
        async with AsyncExitStack() as ways:
            url, cut, swallow = server.url, None, None
            if plan.cuts:
                proxy = await ways.enter_async_context(Proxy(server.url).running())
                url, cut = proxy.url, proxy.cut

                def swallow() -> None:
                    proxy.swallow_answers += 2

            outside = Disturbances(
                kill_server=lambda: server.restart(immediate=True),
                cut=cut,
                swallow=swallow,
                fill_disk=lambda seconds: fill_disk_of(server, seconds),
            )
            report = await Round(plan, url, folder, seed=seed, outside=outside, direct=server.url).run()
        report.counts["writes refused by the disk"] += server.log.read_text(errors="replace").count(TOO_LARGE)
        return report


async def durable_rounds(kind: str, folder: Path, seed: int, *, saga: SagaPlan | None) -> list[Report]:
    """Run the saga, or without one a kill between two handlers, with soon and with strict results."""
    reports = []
    for strict in (False, True) if saga is None else (None,):
        place = folder / f"{kind}-{strict}"
        place.mkdir()
        with ExitStack() as stack:
            url = f"sqlite:///{place}/lab.db"
            if kind != "sqlite":
                url = stack.enter_context(server_of(kind, place / "server")).url
            if saga is not None:
                reports.append(await SagaRound(url, place, seed=seed).run(saga))
            else:
                reports.append(await PairRound(url, place, seed=seed).run(EVENTS_OF_PAIRS, strict=bool(strict)))
    return reports


def server_of(kind: str, folder: Path) -> Server:
    """Return a server that keeps what it has acknowledged when it is killed."""
    if kind == "redis":
        return RedisServer(folder, settings={"appendfsync": "always"})
    return make_server(kind, folder)


async def sqlite_round(plan: Plan, folder: Path, seed: int) -> Report:
    file = folder / "lab.db"
    report = await Round(plan, f"sqlite:///{file}", folder, seed=seed, outside=Disturbances()).run()
    with closing(sqlite3.connect(file)) as db:
        report.wrong += [Violation("damaged", text) for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
    return report


def fill_disk_of(server: Server, seconds: float) -> None:
    """Fill the disk of the server's workers, not of its first process, which must start them anew."""
    pids = disk.children_of(server.pid)
    disk.fill(pids, disk.ROOM)
    asyncio.get_running_loop().call_later(seconds, disk.free, pids)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=["sqlite", *SERVERS])
    parser.add_argument("--quick", action="store_true", help="one small round, without floors")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--saga", type=int, nargs="?", const=2000, metavar="ORDERS", help="sagas instead of rounds")
    parser.add_argument("--pair", action="store_true", help="a kill between two handlers instead of rounds")
    chosen = parser.parse_args()
    if chosen.saga or chosen.pair:
        return durable(chosen.kind, chosen.seed, None if chosen.saga is None else SagaPlan(orders=chosen.saga))
    kind = KINDS[chosen.kind]
    rounds = [small(kind.rounds[0], QUICK)] if chosen.quick else kind.rounds
    total: Counter[str] = Counter()
    wrong = 0
    began = monotonic()
    for number, plan in enumerate(rounds):
        with tempfile.TemporaryDirectory(prefix="durabus-lab-") as folder:
            report = asyncio.run(one_round(chosen.kind, plan, Path(folder), chosen.seed + number))
        total += report.counts
        wrong += len(report.wrong)
        _say(f"round {number + 1} of {len(rounds)}, {monotonic() - began:.0f} s: " + _text(report.counts, brief=True))
        for violation in report.wrong[:SHOWN]:
            _say(f"  BROKEN {violation}")
        if report.wrong:
            _say(f"  history in {_kept(report, f'{chosen.kind}-{chosen.seed + number}')}")
    _say(f"\n{chosen.kind}, seeds {chosen.seed} to {chosen.seed + len(rounds) - 1}, {monotonic() - began:.0f} s")
    _say(_text(total, brief=False))
    floors = {} if chosen.quick else VERBS | kind.floors
    missed = {name: floor for name, floor in floors.items() if total[name] < floor}
    for name, floor in missed.items():
        _say(f"too little happened: {name} {total[name]}, at least {floor} are needed")
    _say(f"{wrong} promises broken")
    return 1 if wrong or missed else 0


def durable(kind: str, seed: int, saga: SagaPlan | None) -> int:
    began, wrong = monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="durabus-lab-") as folder:
        reports = asyncio.run(durable_rounds(kind, Path(folder), seed, saga=saga))
    for report, what in zip(reports, ("soon", "strict") if saga is None else ("saga",), strict=True):
        wrong += len(report.wrong)
        _say(f"{kind}, {what}: " + _text(report.counts, brief=True))
        for violation in report.wrong[:SHOWN]:
            _say(f"  BROKEN {violation}")
        if report.wrong:
            _say(f"  history in {_kept(report, f'{kind}-{what}-{seed}')}")
    _say(f"{wrong} promises broken, {monotonic() - began:.0f} s")
    return 1 if wrong else 0


def _kept(report: Report, name: str) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    history = FOLDER / f"{name}.jsonl"
    history.write_bytes(encode(report.lines))
    return history


def _text(counts: Counter[str], *, brief: bool) -> str:
    shown = {name: count for name, count in sorted(counts.items()) if not (brief and name.startswith("killed "))}
    return (", " if brief else "\n").join(f"{name} {count:,}" for name, count in shown.items())


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  (the report)


if __name__ == "__main__":
    sys.exit(main())
