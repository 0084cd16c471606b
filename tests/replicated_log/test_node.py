"""A node appends commands, reads them back and returns their outcomes, or raises an error."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.replicated_log.simulated_log import SimulatedLog, SimulatedTransport, Trouble
from tests.replicated_log.simulated_store import FEATURES, simulated_store

from durabus.errors import (
    ConfigurationError,
    InvalidEventError,
    SchemaError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import Complete, Keep
from durabus.stores.replicated_log.commands import StopBus, encode_command, encode_commands
from durabus.stores.replicated_log.core import ReplicatedLogCore
from durabus.stores.replicated_log.options import Options
from durabus.stores.replicated_log.public_lane import APART_FROM
from durabus.stores.replicated_log.records import Envelope, label, unseal
from durabus.stores.replicated_log.replica import Replica
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.stores.replicated_log.transport import BrokerRecord, PublicRecord, RefusedError, UnknownOutcomeError

SHORT = Options(timeout=0.3)


def request(**options: object) -> ClaimRequest:
    return ClaimRequest(bus="default", worker_id="w", token=new_token(), **options)  # type: ignore[arg-type]


async def test_calls_that_wait_together_share_records() -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    before = len(log.entries)
    await asyncio.gather(*(store.stop_bus(f"b{n}") for n in range(500)))
    assert len(log.entries) - before < 50
    await store.close()


async def test_an_idle_worker_that_looks_again_does_not_make_the_log_grow() -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    await store.add_events([new_event("t", delay=60)])
    before = len(log.entries)
    for _ in range(20):
        assert await store.claim_next_events(request()) == []
        assert await store.expire_events() == 0
        await store.counts()
    assert len(log.entries) == before
    await store.close()


async def test_a_repeated_publish_is_not_sent_again() -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    new = [new_event("t") for _ in range(3)]
    first = await store.add_events(new)
    before = len(log.entries)
    assert await store.add_events(new) == first
    assert len(log.entries) == before
    await store.close()


async def test_the_children_of_a_settlement_are_shown_once_on_the_public_lane() -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    await store.add_events([new_event("parent")])
    (claim,) = await store.claim_next_events(request())
    children = (new_event("child"), new_event("child"))
    for _ in range(2):  # the repeat shows nothing new
        await store.keep_results([Keep(claim.ref, (), children[:1])])
        await store.settle_events([Complete(claim.ref, children=children)])
    public = [entry.headers["event_id"] for entry in log.entries if entry.type == "child"]
    assert public == [child.event_id for child in children]
    assert (await store.counts()).pending == 2
    await store.close()


async def test_foreign_records_are_skipped_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    with caplog.at_level(logging.WARNING, "durabus.replicated_log"):
        for body in (b"", b"hello", b"{}", bytes(200)):
            log.store(None, {}, body)
        log.store("t", {}, b"not json")
        assert len(await store.add_events([new_event("t")])) == 1
    assert store.skipped_records == 5
    assert len(caplog.records) == 5
    late = simulated_store(log)
    await late.open()
    assert late.skipped_records == 5
    await late.close()
    await store.close()


async def test_a_command_that_fails_is_void_and_its_caller_gets_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop_bus(core: ReplicatedLogCore, bus: str) -> None:
        raise ZeroDivisionError(bus)

    monkeypatch.setattr(ReplicatedLogCore, "stop_bus", stop_bus)
    store = simulated_store(SimulatedLog())
    await store.open()
    with pytest.raises(StoreError, match="StopBus failed and is void: ZeroDivisionError: b"):
        await store.stop_bus("b")
    assert store.skipped_records == 1
    assert len(await store.add_events([new_event("t")])) == 1
    await store.close()


async def test_a_command_that_no_node_could_read_is_refused_and_stops_no_node() -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    before = len(log.entries)
    with pytest.raises(InvalidEventError, match="StopBus cannot be written: Expected `str`, got `int`"):
        await store.stop_bus(17)  # type: ignore[arg-type]
    assert len(log.entries) == before
    assert len(await store.add_events([new_event("t")])) == 1
    await store.close()


async def test_a_record_of_a_newer_durabus_stops_the_node() -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    from durabus.stores.replicated_log import records

    body = records._ENCODER.encode(Envelope(99, "x", 1, 0, 0, 0, 1, b""))
    log.store(None, label(body), body)
    with pytest.raises(SchemaError, match="format 99"):
        await store.counts()
    with pytest.raises(SchemaError, match="upgrade"):
        await store.add_events([new_event("t")])
    await store.close()


async def test_a_replica_that_cannot_apply_a_record_refuses_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()

    def fail(replica: Replica, entries: Sequence[BrokerRecord], with_entries: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Replica, "apply", fail)
    for _ in range(2):
        with pytest.raises(StoreError, match="this replica cannot go on: MemoryError"):
            await store.add_events([new_event("t")])
    monkeypatch.undo()
    with pytest.raises(StoreError, match="cannot go on"):
        await store.counts()
    await store.close()


@pytest.mark.parametrize(("first", "second"), [("cluster", "other"), ("max_history", 5)])
async def test_a_node_of_another_cluster_is_refused(first: str, second: object) -> None:
    log = SimulatedLog()
    store = simulated_store(log)
    await store.open()
    stranger = simulated_store(log, options=Options(**{first: second}))  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=r"another prefix"):
        await stranger.open()
    assert len(await store.add_events([new_event("t")])) == 1
    await store.close()


class Silent(SimulatedTransport):
    """A broker that takes no record, or takes it and does not reply."""

    taking = True
    answering = True

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        if self.taking:
            await super().append(record, key, headers)
        if not self.answering:
            raise UnknownOutcomeError("no reply")

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        if not self.taking:
            raise UnknownOutcomeError("no reply")
        await super().publish(records)


async def opened(transport: SimulatedTransport, options: Options = SHORT) -> ReplicatedLogStore:
    store = ReplicatedLogStore(transport, options, FEATURES)
    await store.open()
    return store


async def test_a_call_without_a_reply_raises_that_its_outcome_is_unknown() -> None:
    transport = Silent(SimulatedLog())
    store = await opened(transport)
    transport.taking = transport.answering = False
    with pytest.raises(StoreUnavailableError, match=r"within 0.3 s: it may or may not have taken effect; repeat"):
        await store.stop_bus("b")
    transport.taking = transport.answering = True
    await store.stop_bus("b")
    await store.close()


async def test_what_was_given_up_is_void_however_late_it_comes() -> None:
    log = SimulatedLog()
    transport = Silent(log)
    store = await opened(transport)
    held: list[bytes] = []

    async def hold(record: bytes, key: str, headers: Mapping[str, str]) -> None:
        held.append(record)
        raise UnknownOutcomeError("no reply")

    take = transport.append
    transport.append = hold  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        await store.register_handlers("late", "n", [], kept_for=None)
    transport.append = take  # type: ignore[method-assign]
    await store.register_handlers("known", "n", [], kept_for=None)
    log.store(None, label(held[0]), held[0])
    assert [bus.bus for bus in await store.list_buses()] == ["known"]
    assert store.skipped_records == 0
    await store.close()


async def test_a_reply_that_was_lost_does_not_apply_a_call_twice() -> None:
    log = SimulatedLog()
    store = await opened(SimulatedTransport(log, Trouble(3, reply_lost=60)), Options())
    claims = []
    await store.add_events([new_event("t") for _ in range(10)])
    for _ in range(10):
        claims += await store.claim_next_events(request())
    assert sorted(claim.event.id for claim in claims) == list(range(1, 11))
    assert {claim.event.fence for claim in claims} == {1}
    await store.close()


class Full(SimulatedTransport):
    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        if unseal(record, headers).number > 1:
            raise RefusedError("the stream is full: raise its max_bytes")
        await super().append(record, key, headers)


async def test_a_full_log_is_reported_at_once() -> None:
    store = await opened(Full(SimulatedLog()), Options())
    with pytest.raises(StoreUnavailableError, match="raise its max_bytes"):
        await store.stop_bus("b")
    await store.close()


async def test_large_commands_go_in_pieces() -> None:
    log = SimulatedLog(largest=2000)
    store, other = [await opened(SimulatedTransport(log), Options()) for _ in range(2)]
    handlers = [HandlerInfo(handler_id=f"h{n}", pattern="*" * 20) for n in range(200)]
    await store.register_handlers("b", "n", handlers, kept_for=None)
    assert len((await other.list_handlers("b")).handlers) == 200
    assert all(len(entry.body) <= 2000 for entry in log.entries)
    await store.close()
    await other.close()


async def test_a_publish_that_was_sent_in_part_stores_no_event() -> None:
    log = SimulatedLog()
    transport = SimulatedTransport(log)
    store = await opened(transport, Options(timeout=0.3))

    async def half(records: Sequence[PublicRecord]) -> None:
        for record in records[: len(records) // 2]:
            log.store(record.type, dict(record.headers), record.body)
        raise UnknownOutcomeError("died")

    transport.publish = half  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        await store.add_events([new_event("t") for _ in range(10)])
    assert (await store.counts()).pending == 0
    await store.close()


async def test_closing_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    log = SimulatedLog()
    store = await opened(SimulatedTransport(log, Trouble(1, delayed=100)), Options())
    async with asyncio.TaskGroup() as group:
        accepted = group.create_task(store.add_events([new_event("t") for _ in range(5)]))
        await asyncio.sleep(0)
        await store.close()
    assert len(accepted.result()) == 5
    for call in (store.counts(), store.stop_bus("b"), store.now(), store.claim_next_events(request())):
        with pytest.raises(StoreClosedError):
            await call
    await store.close()


async def test_a_cancelled_call_harms_no_other_call() -> None:
    store = await opened(SimulatedTransport(SimulatedLog()), Options())
    call = asyncio.create_task(store.stop_bus("b"))
    await asyncio.sleep(0)
    call.cancel()
    assert len(await store.add_events([new_event("t")])) == 1
    await store.close()


async def test_metadata_that_travels_apart_shares_records() -> None:
    log = SimulatedLog()
    store = await opened(SimulatedTransport(log), Options())
    before = len(log.entries)
    metadata = {"text": "x" * (APART_FROM + 1)}
    events = await store.add_events([new_event("t", metadata=metadata) for _ in range(100)])
    assert {event.metadata["text"] for event in events} == {metadata["text"]}
    assert len(log.entries) - before < 100 + 20
    await store.close()


def code_of_a_child(store: ReplicatedLogStore) -> int:
    child = os.fork()
    if child == 0:
        try:
            store._node.check_open()
        except StoreClosedError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_forked_child_is_refused() -> None:
    store = await opened(SimulatedTransport(SimulatedLog()), Options())
    assert code_of_a_child(store) == 7
    await store.close()


async def test_an_event_that_is_too_large_is_refused_alone() -> None:
    store = await opened(SimulatedTransport(SimulatedLog(largest=2000)), Options())
    small, large = await asyncio.gather(
        store.add_events([new_event("t")]),
        store.add_events([new_event("t"), new_event("t", {"text": "x" * 3000})]),
        return_exceptions=True,
    )
    assert isinstance(small, list)
    assert "too many" in str(large)
    assert (await store.counts()).pending == 1
    await store.close()


@pytest.mark.parametrize(
    "wrong", [{"payload_json": '"\ud800"'}, {"metadata_json": '["traceparent"]'}, {"priority": "high"}]
)
async def test_an_event_that_cannot_be_written_is_refused_alone(wrong: dict[str, Any]) -> None:
    store = await opened(SimulatedTransport(SimulatedLog()), Options())
    made_by_hand = msgspec.structs.replace(new_event("t"), **wrong)
    async with asyncio.timeout(10):
        before, refused, after = await asyncio.gather(
            store.add_events([new_event("t")]),
            store.add_events([made_by_hand]),
            store.add_events([new_event("t")]),
            return_exceptions=True,
        )
    assert isinstance(before, list)
    assert isinstance(after, list)
    assert isinstance(refused, InvalidEventError)
    assert (await store.counts()).pending == 2
    await store.close()


def test_what_cannot_be_written_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidEventError, match="StopBus cannot be written"):
        encode_command(StopBus("\ud800"))
    assert encode_commands([encode_command(StopBus("b"))])


@pytest.mark.parametrize("query", ["prefix=a.b", "cluster=", "max_history=-1", "timeout=0", "colour=red", "timeout=x"])
def test_invalid_options_are_refused(query: str) -> None:
    from durabus.stores.replicated_log.options import options_from_url

    with pytest.raises(ConfigurationError):
        options_from_url(f"nats://localhost?{query}")


@pytest.mark.parametrize("url", ["nats://user:s3cret@h?timeout=x", "kafka://h?pasword=s3cret", "nats://u:s3cret@h?a=b"])
def test_an_error_about_a_url_does_not_show_the_password(url: str) -> None:
    from durabus.stores.replicated_log.options import options_from_url

    with pytest.raises(ConfigurationError) as refused:
        options_from_url(url)
    assert "s3cret" not in str(refused.value)
