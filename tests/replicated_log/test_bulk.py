"""Claims and completions in bulk do what the lifecycle does to each of them, to the last row."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from durabus.clock import ManualClock
from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRequest, HandlerClaim, HandlerClaimRequest, LockClaim
from durabus.model.event import NewEvent, new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import EventMode, HandlerMode, ResultStatus
from durabus.store.claims import SettleAnswer
from durabus.stores.memory.claims import MemoryClaims
from durabus.stores.replicated_log.commands import decode_commands, encode_commands, finish
from durabus.stores.replicated_log.core import ReplicatedLogCore
from durabus.stores.replicated_log.wire import PackedCompletions, PackedSettlement, wire

BUSES = ("a", "b")


class ByKernel(ReplicatedLogCore):
    """The same core without the bulk."""

    def settle(
        self, sent: Sequence[PackedSettlement], then_claim: ClaimRequest | None, *, with_entries: bool = False
    ) -> SettleAnswer:
        settlements = [settlement for one in sent for settlement in one.settlements()]
        return finish(self.settle_events(settlements, then_claim=then_claim, with_entries=with_entries))

    def _claim(self, request: ClaimRequest, now: float) -> list[Claim]:
        return MemoryClaims._claim(self, request, now)


class Pair:
    """Runs every command on both, and compares their states."""

    def __init__(self, max_history: int) -> None:
        self.clocks = [ManualClock(), ManualClock()]
        self.cores = [ReplicatedLogCore(self.clocks[0]), ByKernel(self.clocks[1])]
        for core in self.cores:
            core._max_history = max_history

    def do(self, verb: str, *arguments: Any, **options: Any) -> Any:
        first, second = (self._do(core, verb, *arguments, **options) for core in self.cores)
        assert comparable(first) == comparable(second)
        one, two = self.cores
        assert one.tables() == two.tables()
        assert finish(one.counts()) == finish(two.counts())
        return first

    def _do(self, core: ReplicatedLogCore, verb: str, *arguments: Any, **options: Any) -> Any:
        try:
            answer = getattr(core, verb)(*arguments, **options)
            return answer if verb == "settle" else finish(answer)
        except LeaseLost as error:
            return error

    def advance(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)


def comparable(answer: Any) -> Any:
    """Return a reply in a form that can be compared: two errors are never equal."""
    if isinstance(answer, SettleAnswer):
        return [comparable(one) for one in answer.outcomes], answer.claims
    return str(answer) if isinstance(answer, LeaseLost) else answer


def random_event(chance: random.Random) -> NewEvent:
    return new_event(
        "t",
        bus=chance.choice(BUSES),
        priority=chance.choice([0, 0, 0, 5]),
        delay=chance.choice([0.0, 0.0, 0.0, 4.0]),
        tags=["x"] if chance.random() < 0.2 else (),
        max_attempts=chance.choice([None, None, 2]),
        ordering_key=chance.choice([None, None, "k", "l"]),
    )


def random_request(chance: random.Random, number: int) -> ClaimRequest:
    return ClaimRequest(
        bus=chance.choice(BUSES),
        worker_id="w",
        token=f"token-{number if chance.random() < 0.9 else number // 2}",
        limit=chance.choice([1, 3, 10]),
        lease=chance.choice([2.0, 50.0]),
        mode=chance.choice([EventMode.PARALLEL] * 6 + [EventMode.BUS_SERIAL]),
        tags=("x",) if chance.random() < 0.1 else (),
        max_attempts=chance.choice([None, 3]),
    )


def random_settlement(chance: random.Random, claim: Claim) -> Settlement:
    ref = claim.ref
    if chance.random() < 0.05:
        ref = msgspec.structs.replace(ref, token="another")
    if chance.random() < 0.05:
        ref = msgspec.structs.replace(ref, id=ref.id + 1)
    kind = chance.random()
    if kind < 0.8:
        return Complete(ref, (), (), chance.random(), handler_id=chance.choice(["h", "h", "h", "other", None]))
    if kind < 0.9:
        return Fail(ref, "no", chance.choice([None, 1.0]))
    return Release(ref)


@pytest.mark.parametrize("seed", range(40))
def test_random_commands_lead_to_the_same_state_as_by_the_kernel(seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair(max_history=chance.choice([0, 3, 10, 1000]))
    claims: list[Claim] = []
    for number in range(80):
        match chance.randrange(7):
            case 0 | 1:
                pair.do("add_events", [random_event(chance) for _ in range(chance.randrange(1, 8))])
            case 2:
                claims += pair.do("claim_next_events", random_request(chance, number))
            case 3 | 4:
                done = chance.sample(claims, chance.randrange(len(claims) + 1))
                sent = wire([random_settlement(chance, claim) for claim in done])
                then = random_request(chance, number) if chance.random() < 0.7 else None
                claims += pair.do("settle", sent, then, with_entries=chance.random() < 0.3).claims
                pair.do("settle", sent, None)
            case 5:
                pair.advance(chance.choice([0.0, 1.0, 3.0]))
            case 6 if claims:
                begin_a_handler(pair, chance.choice(claims), f"handler-{number}")
            case _:
                remember_a_reader(pair, number)


def begin_a_handler(pair: Pair, claim: Claim, token: str) -> None:
    request = HandlerClaimRequest(
        event=claim.ref, handler_ids=("h",), worker_id="w", token=token, mode=HandlerMode.SERIAL
    )
    taken = pair.do("claim_next_handler_result", request)
    if isinstance(taken, HandlerClaim):
        pair.do("complete_handler_result", taken, HandlerResult(handler_id="h", status=ResultStatus.SUCCEEDED))


def remember_a_reader(pair: Pair, number: int) -> None:
    lock: LockClaim | None = pair.do("claim_lock", "reader", worker_id="w", token=f"r{number}", lease=1.0)
    if lock is not None:
        head = pair.do("log_head")
        pair.do("save_position", "reader", head, lock=lock)


def test_a_run_of_completions_without_times_is_no_command() -> None:
    run = ["settle_events", [["d", "t", 1, [1, 2], [0.5]]], None]
    with pytest.raises(msgspec.ValidationError, match="2 completions with 1 times"):
        decode_commands(encode_commands([msgspec.Raw(msgspec.msgpack.encode(run))]))
    with pytest.raises(ValueError, match="1 completions with 0 times"):
        PackedCompletions("t", 1, (1,), ())
