"""Settlements on their way through the log."""

import msgspec
import pytest

from durabus.model.claim import ClaimRef, ClaimRequest
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import ResultStatus
from durabus.stores.replicated_log.commands import SettleEvents, decode_commands, encode_command, encode_commands
from durabus.stores.replicated_log.wire import PackedCompletions, wire

RESULT = HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED)
MIXED: list[Settlement] = [
    Complete(ClaimRef(1, "t", 1), (), (), 0.5),
    Complete(ClaimRef(2, "t", 1)),
    Complete(ClaimRef(3, "t", 2), (), (), 1.5, handler_id="h"),
    Fail(ClaimRef(4, "t", 2), "no", 1.0, (RESULT,), 2.5, 500),
    Complete(ClaimRef(5, "t", 2), (RESULT,), (), 1.0),
    Complete(ClaimRef(6, "t", 2), (), ("bad",), 1.0),
    Complete(ClaimRef(7, "t", 2), (), (), 1.0, 200),
    Release(ClaimRef(8, "u", 1), 3.0, (RESULT,)),
    Complete(ClaimRef(9, "u", 1), handler_id="h"),
    Complete(ClaimRef(10, "u", 1), handler_id="other"),
    Complete(ClaimRef(11, "u", 1)),
    Complete(ClaimRef(12, "u", 1), (RESULT,), handler_id="h"),
]


def there_and_back(settlements: list[Settlement]) -> list[Settlement]:
    request = ClaimRequest(bus="b", worker_id="w", token="x")
    (command,) = decode_commands(encode_commands([encode_command(SettleEvents(wire(settlements), request))]))
    assert isinstance(command, SettleEvents)
    assert command.then_claim == request
    return [settlement for one in command.settlements for settlement in one.settlements()]


def test_settlements_arrive_as_they_were_sent_and_in_their_order() -> None:
    assert there_and_back(MIXED) == MIXED
    assert there_and_back(MIXED[::-1]) == MIXED[::-1]
    assert there_and_back([]) == []


def test_what_one_claim_brought_and_is_plainly_done_is_one_record() -> None:
    done: list[Settlement] = [Complete(ClaimRef(n, "a" * 32, 1), (), (), 0.25) for n in range(1000, 1100)]
    assert wire(done) == (PackedCompletions("a" * 32, 1, tuple(range(1000, 1100)), (0.25,) * 100),)
    assert len(msgspec.msgpack.encode(wire(done))) < 13 * len(done)


def test_the_handler_of_all_is_written_once() -> None:
    refs = [ClaimRef(n, "a" * 32, 1) for n in range(100)]
    done: list[Settlement] = [Complete(ref, (), (), 0.25, handler_id="charge_card") for ref in refs]
    (packed,) = wire(done)
    assert isinstance(packed, PackedCompletions)
    assert packed.handler_ids == ("charge_card",)
    mixed: list[Settlement] = [Complete(ref, handler_id=("a", "b", None)[n % 3]) for n, ref in enumerate(refs)]
    assert len(wire(mixed)) == 1
    assert there_and_back(mixed) == mixed


def test_a_record_with_too_few_handlers_is_refused() -> None:
    with pytest.raises(ValueError, match="3 completions with 2 handlers"):
        PackedCompletions("t", 1, (1, 2, 3), (None, None, None), ("a", "b"))
