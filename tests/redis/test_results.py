"""The results of an event: what keeping one of them costs, and what they leave behind."""

from collections.abc import Awaitable, Callable

import pytest
import redis
from tests.redis.server import keys_of

from durabus.model.claim import Claim, ClaimRequest, HandlerClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Keep, Release
from durabus.model.statuses import ResultStatus
from durabus.stores.redis.store import RedisStore

STEP = '{"value":"' + "x" * 200 + '"}'
END = "the end of the call"


async def claim(store: RedisStore) -> Claim:
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1, lease=30.0)
    (claimed,) = await store.claim_next_events(request)
    return claimed


def steps(*numbers: int) -> tuple[HandlerResult, ...]:
    kept = ResultStatus.KEPT
    return tuple(
        HandlerResult(handler_id=f"charge > step {number:04}", status=kept, attempts=1, value_json=STEP)
        for number in numbers
    )


async def bytes_of(call: Callable[[], Awaitable[object]], admin: redis.Redis, prefix: str) -> int:
    """Return how many bytes of commands a call runs on the server, those inside of its function included."""
    size = 0
    with admin.monitor() as monitor:  # type: ignore[no-untyped-call]
        await call()
        admin.echo(END)
        for one in monitor.listen():
            if END in one["command"]:
                return size
            size += len(one["command"]) if prefix in one["command"] else 0
    raise AssertionError("the server has closed the connection")


@pytest.mark.parametrize("by", ["keep", "release", "handler"])
async def test_a_step_costs_no_more_after_many_others(url: str, store: RedisStore, admin: redis.Redis, by: str) -> None:
    await store.add_events([new_event("t")])
    prefix = url.rpartition("=")[2]

    async def bytes_of_step(number: int) -> int:
        held = await claim(store)
        if by == "keep":
            size = await bytes_of(lambda: store.keep_results([Keep(held.ref, steps(number))]), admin, prefix)
        elif by == "release":
            release = Release(held.ref, results=steps(number))
            return await bytes_of(lambda: store.settle_events([release]), admin, prefix)
        else:
            request = HandlerClaimRequest(
                event=held.ref, handler_ids=("charge",), worker_id="w", token=new_token(), lease=30.0
            )
            handler = await store.claim_next_handler_result(request)
            assert handler is not None
            size = await bytes_of(lambda: store.keep_results([Keep(handler, steps(number))]), admin, prefix)
            await store.release_handler_claim(handler)
        await store.settle_events([Release(held.ref)])
        return size

    first = await bytes_of_step(1)
    held = await claim(store)
    await store.keep_results([Keep(held.ref, steps(*range(2, 801)))])
    await store.settle_events([Release(held.ref)])
    assert await bytes_of_step(801) < first + len(STEP)


@pytest.mark.parametrize("way", ["completed", "cancelled", "purged", "removed", "cleaned up", "requeued"])
async def test_the_results_of_an_event_leave_nothing_behind(
    url: str, store: RedisStore, admin: redis.Redis, way: str
) -> None:
    (event,) = await store.add_events([new_event("t")])
    held = await claim(store)
    await store.keep_results([Keep(held.ref, steps(*range(40)))])
    offered = HandlerResult(handler_id="mail", status=ResultStatus.PENDING, attempts=0, expires_ts=0.0)
    await store.keep_results([Keep(held.ref, (offered,))])
    match way:
        case "completed":
            done = HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED, attempts=1)
            await store.settle_events([Complete(held.ref, (done,))])
            assert await store.trim_event_history("default", older_than=0) == 1
        case "cancelled":
            await store.settle_events([Cancel(held.ref, "expired")])
            assert await store.trim_event_history("default", older_than=0) == 1
        case "purged":
            await store.settle_events([Fail(held.ref, "no", None)])
            assert await store.purge_dead_letters(created_until_ts=await store.now()) == 1
        case "removed":
            assert await store.remove_event(event.id)
        case "cleaned up":
            await store.cancel_event(event.id, reason="not wanted")
            assert [await store.cleanup_results(limit=limit) for limit in (7, 7, 100)] == [7, 7, 27]
        case _:
            failed = HandlerResult(handler_id="mail", status=ResultStatus.TRANSIENT, attempts=1, error="no")
            await store.settle_events([Fail(held.ref, "no", None, (failed,))])
            await store.requeue_dead_letters([event.id])
            assert await store.list_results(event.id) == list(steps(*range(40)))
            assert await store.remove_event(event.id)
    prefix = url.rpartition("=")[2]
    assert not {name for name in keys_of(admin, prefix) if ":event_results:" in name}
