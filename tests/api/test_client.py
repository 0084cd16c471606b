"""The Python client: what it sends, what it sends again, and its worker loop."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from tests.api.support import HERE, Desk, Server

from durabus import ConfigurationError, LeaseLost, TransientError, UnrecoverableError
from durabus.client import Client, Job, SyncClient, SyncJob
from durabus.errors import ApiError, StoreUnavailableError
from durabus.http.schema.events import iso
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Keep, Release, Settlement
from durabus.model.statuses import ResultStatus


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.client.calls.FIRST_PAUSE", 0.001)


@pytest.fixture
async def client(desk: Desk) -> AsyncIterator[Client]:
    transport = httpx2.ASGITransport(app=desk.app, client=HERE)
    async with Client("http://127.0.0.1", transport=transport, worker_id="host:1") as made:
        yield made


def test_the_client_works_without_the_web_framework() -> None:
    """It shares the documents of the server, but its users install neither the framework nor the dashboard."""
    code = (
        "import sys; import durabus.client; "
        "print(sorted({'jinja2', 'litestar', 'prometheus_client', 'uvicorn'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


async def test_events_come_back_as_the_library_s_own(client: Client, desk: Desk) -> None:
    fields = {"type": "order.placed", "tags": ["a", "b"], "metadata": {"x": [1]}, "priority": 3, "delay": 5.0}
    event = await client.publish("Order 7", {"n": 1.5}, **fields)  # type: ignore[arg-type]
    assert event == await desk.store.get_event(event.id)
    assert (event.payload, event.tags, event.type) == ({"n": 1.5}, ("a", "b"), "order.placed")
    two = await client.publish_batch([client.new("one", tags=["t"]), client.new("two", tags=["t"])])
    assert [await desk.store.get_event(one.id) for one in two] == two


async def test_claims_are_settled_renewed_and_lost(client: Client, desk: Desk) -> None:
    for n in range(4):
        await client.publish(f"job {n}", tags=["t"])
    one, two, three, four = await client.claim(tags=["t"], limit=4, lease=60)
    assert one.event == await desk.store.get_event(one.event.id)
    (expires,) = await client.renew([one.ref], lease=90)
    assert expires == await desk.store.now() + 90
    assert len(await client.start([one.ref])) == 1
    settlements: list[Settlement] = [
        Complete(one.ref),
        Fail(two.ref, "no", None),
        Fail(three.ref, "later", 5.0),
        Release(four.ref),
    ]
    outcomes = await client.settle(settlements)
    assert [outcome.status for outcome in outcomes if not isinstance(outcome, LeaseLost)] == [
        "COMPLETED",
        "FAILED",
        "PENDING",
        "PENDING",
    ]
    assert await client.settle(settlements[:3]) == outcomes[:3]
    assert isinstance((await client.settle([Release(one.ref)]))[0], LeaseLost)
    assert isinstance((await client.renew([one.ref]))[0], LeaseLost)
    dead = await client.dead_letters()
    assert (dead.total, dead.events[0].errors) == (1, ("no",))
    (back,) = await client.requeue([two.event.id])
    assert (back.status, back.generation) == ("PENDING", 1)
    assert (await client.stats()).completed == 1
    assert await client.purge(0) == 0
    page = await client.list(status="COMPLETED", tags="t")
    assert [event["id"] for event in page["events"]] == [one.event.id]
    assert len((await client.get(one.event.id, include_logs=True))["logs"]) == 3


async def test_an_event_comes_with_its_handlers_and_their_steps(client: Client, desk: Desk) -> None:
    await client.publish("order", tags=["t"])
    (claim,) = await client.claim(tags=["t"], limit=1, lease=60)
    until = await desk.store.now() + 5
    values = {"charge": '{"value":{"receipt":7}}', "scan": f'{{"value":"{"x" * 5000}"}}', "sleep": str(until)}
    for name, value in values.items():
        step = HandlerResult(handler_id=f"order > {name}", status=ResultStatus.KEPT, attempts=1, value_json=value)
        await desk.store.keep_results([Keep(claim.ref, (step,))])
    assert "handlers" not in await client.get(claim.event.id)
    (running,) = (await client.get(claim.event.id, include_results=True))["handlers"]
    assert (running["handler_id"], running["status"], len(running["steps"])) == ("order", "PROCESSING", 3)
    done = HandlerResult(handler_id="order", status=ResultStatus.SUCCEEDED, attempts=1, value_json="3")
    await desk.store.settle_events([Complete(claim.ref, (done,))])
    shown = await client.get(claim.event.id, include_logs=True, include_results=True)
    assert len(shown["logs"]) == 2
    assert shown["handlers"] == [
        {
            "handler_id": "order",
            "status": "SUCCEEDED",
            "attempts": 1,
            "value": 3,
            "steps": [
                {"name": "charge", "attempts": 1, "value": {"receipt": 7}},
                {"name": "scan", "attempts": 1, "value_chars": 5002},
                {"name": "sleep", "attempts": 1, "sleeps_until": iso(until)},
            ],
        }
    ]


async def test_a_refusal_is_an_error_that_says_why(client: Client) -> None:
    with pytest.raises(ApiError, match="no event 99") as refused:
        await client.get(99)
    assert refused.value.status == 404
    with pytest.raises(ApiError) as refused:
        await client.publish("x", 2**70)
    assert refused.value.status == 400
    with pytest.raises(ConfigurationError, match="https://"):
        Client("localhost:8484")


# --- what is sent again ---------------------------------------------------------------------------------------------


class Flaky(httpx2.AsyncBaseTransport):
    """Lets the server do its work, and then loses the reply: the worst that a network can do."""

    def __init__(self, desk: Desk, times: int, *, status: int | None = None) -> None:
        self._server = httpx2.ASGITransport(app=desk.app, client=HERE)
        self._left = times
        self._status = status
        self.sent = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent += 1
        answer = await self._server.handle_async_request(request)
        if self._left:
            self._left -= 1
            if self._status is not None:
                return httpx2.Response(self._status)
            raise httpx2.ReadError("the connection broke")
        return answer


@pytest.mark.parametrize("status", [None, 502, 503, 504, 429])
async def test_lost_replies_cost_nothing(desk: Desk, status: int | None) -> None:
    async def through(times: int) -> tuple[Client, Flaky]:
        flaky = Flaky(desk, times, status=status)
        return Client("http://127.0.0.1", transport=flaky), flaky

    client, flaky = await through(3)
    event = await client.publish("once", tags=["t"])
    assert flaky.sent == 4
    assert (await desk.store.counts()).pending == 1
    client, _ = await through(2)
    (claim,) = await client.claim(tags=["t"])
    assert (claim.event.id, claim.event.attempts) == (event.id, 1)
    client, _ = await through(2)
    (outcome,) = await client.settle([Complete(claim.ref)])
    assert not isinstance(outcome, LeaseLost)
    assert await desk.trail(event.id) == ["PICKED", "COMPLETED"]


async def test_what_is_not_safe_is_sent_once(desk: Desk) -> None:
    flaky = Flaky(desk, 1)
    client = Client("http://127.0.0.1", transport=flaky)
    for call in (client.purge(1), client.reset(1, "why")):
        flaky._left, flaky.sent = 1, 0
        with pytest.raises(StoreUnavailableError, match="durabus serve"):
            await call
        assert flaky.sent == 1


async def test_the_client_gives_up_after_six_tries(desk: Desk) -> None:
    flaky = Flaky(desk, 1000)
    with pytest.raises(StoreUnavailableError):
        await Client("http://127.0.0.1", transport=flaky).stats()
    assert flaky.sent == 6
    with pytest.raises(ApiError, match="503"):
        await Client("http://127.0.0.1", transport=Flaky(desk, 1000, status=503)).stats()


async def test_a_reply_that_no_durabus_server_sent_is_an_error_too() -> None:
    page = httpx2.MockTransport(lambda _: httpx2.Response(200, text="<html>Welcome to our network</html>"))
    with pytest.raises(ApiError, match="200: not a response of this API"):
        await Client("http://127.0.0.1", transport=page).stats()


# --- the worker loop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "status", "action"),
    [
        (None, "COMPLETED", "COMPLETED"),
        (ValueError("broken"), "PENDING", "FAILED"),
        (TransientError("busy", retry_after=7.0), "PENDING", "FAILED"),
        (UnrecoverableError("never"), "COMPLETED_WITH_ERRORS", "COMPLETED_WITH_ERRORS"),
    ],
)
async def test_a_job_ends_as_its_block_does(
    client: Client, desk: Desk, raised: Exception | None, status: str, action: str
) -> None:
    event = await client.publish("job", {"n": 1}, tags=["t"])
    async for job in client.jobs(tags=["t"], wait=0.1):
        async with job:
            assert (job.payload, job.fence) == ({"n": 1}, 1)
            if raised is not None:
                raise raised
        break
    stored = await desk.store.get_event(event.id)
    assert stored is not None
    assert stored.status == status
    assert await desk.trail(event.id) == ["PICKED", action]
    if isinstance(raised, TransientError):
        assert stored.due_ts == stored.updated_ts + 7
    elif status == "PENDING":
        assert stored.due_ts == stored.updated_ts + 300
        assert stored.errors == ("ValueError: broken",)


async def test_a_job_that_is_cancelled_goes_back_to_the_queue(client: Client, desk: Desk) -> None:
    event = await client.publish("job", tags=["t"])
    working = asyncio.Event()

    async def work() -> None:
        async for job in client.jobs(tags=["t"]):
            async with job:
                working.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await working.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stored = await desk.store.get_event(event.id)
    assert stored is not None
    assert (stored.status, stored.attempts) == ("PENDING", 0)
    assert await desk.trail(event.id) == ["PICKED", "RELEASED"]


async def test_a_job_that_was_taken_away_is_cancelled_and_the_loop_goes_on(client: Client, desk: Desk) -> None:
    first, second = [await client.publish(f"job {n}", tags=["t"]) for n in range(2)]
    begun: list[int] = []
    async for job in client.jobs(tags=["t"], lease=0.3, wait=0.1):
        await desk.store.remove_event(first.id)
        async with job:
            begun.append(job.event.id)
            if job.event.id == first.id:
                await asyncio.Event().wait()
        if job.event.id == second.id:
            break
    assert begun == [first.id, second.id]
    assert await desk.trail(second.id) == ["PICKED", "COMPLETED"]


async def test_a_job_is_renewed_while_it_runs(client: Client, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = asyncio.Event()
    renew = desk.store.renew_event_claims

    async def tell(*arguments: object, **options: object) -> object:
        renewed.set()
        return await renew(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.store, "renew_event_claims", tell)
    event = await client.publish("job", tags=["t"])
    async for job in client.jobs(tags=["t"], lease=1.5):
        async with job:
            await renewed.wait()
        break
    assert await desk.trail(event.id) == ["PICKED", "COMPLETED"]


class Away(httpx2.AsyncBaseTransport):
    """A server that is away for a while, or for ever, after it has replied to some requests for work."""

    def __init__(self, desk: Desk, *, answers: int, away: int) -> None:
        self._server = httpx2.ASGITransport(app=desk.app, client=HERE)
        self.answers = answers
        self.away = away

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/claims":
            self.answers -= 1
            if self.answers < 0 < self.away:
                self.away -= 1
                raise httpx2.ConnectError("no route")
        return await self._server.handle_async_request(request)


async def test_a_worker_waits_for_a_server_that_went_away(desk: Desk) -> None:
    transport = Away(desk, answers=1, away=20)
    client = Client("http://127.0.0.1", transport=transport)
    ids = [(await client.publish(f"job {n}", tags=["t"])).id for n in range(2)]
    done: list[int] = []
    async for job in client.jobs(tags=["t"], wait=0.1):
        async with job:
            done.append(job.event.id)
        if len(done) == 2:
            break
    assert done == ids
    assert transport.away == 0


async def test_a_worker_gets_an_error_if_the_server_was_never_there(desk: Desk) -> None:
    client = Client("http://127.0.0.1", transport=Away(desk, answers=0, away=20))
    with pytest.raises(StoreUnavailableError, match="durabus serve"):
        await anext(client.jobs(tags=["t"]))


def test_a_worker_without_an_event_loop_waits_too() -> None:
    answers = [*[httpx2.Response(503)] * 20, httpx2.Response(200, json={"claims": []})]

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return answers.pop() if answers else httpx2.Response(401, json={"detail": "revoked"})

    client = SyncClient("http://127.0.0.1", transport=httpx2.MockTransport(answer))
    with client, pytest.raises(ApiError, match="401: revoked"):
        next(client.jobs(tags=["t"]))
    assert answers == []


class Deaf(httpx2.AsyncBaseTransport):
    """A server that does not reply to some requests, or not in time."""

    def __init__(self, desk: Desk, path: str, *, breaks: bool) -> None:
        self._server = httpx2.ASGITransport(app=desk.app, client=HERE)
        self._path = path
        self._breaks = breaks

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == self._path:
            if self._breaks:
                raise httpx2.ConnectError("no route")
            await asyncio.Event().wait()
        return await self._server.handle_async_request(request)


@pytest.mark.parametrize("breaks", [False, True], ids=["silence", "no connection"])
async def test_a_job_is_cancelled_if_its_lease_ends_without_a_reply(desk: Desk, *, breaks: bool) -> None:
    client = Client("http://127.0.0.1", transport=Deaf(desk, "/claims/renew", breaks=breaks))
    await client.publish("job", tags=["t"])
    (claim,) = await client.claim(tags=["t"])
    working = asyncio.Event()
    async with asyncio.timeout(10):
        async with Job(client, claim, lease=0.2):
            working.set()
            await asyncio.Event().wait()
    assert working.is_set()
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_a_cancelled_job_is_cancelled_also_where_it_cannot_be_given_back(desk: Desk) -> None:
    client = Client("http://127.0.0.1", transport=Deaf(desk, "/claims/settle", breaks=True))
    await client.publish("job", tags=["t"])
    (claim,) = await client.claim(tags=["t"])
    working = asyncio.Event()

    async def work() -> None:
        async with Job(client, claim, lease=30):
            working.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await working.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- without an event loop ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(f"sqlite:///{tmp_path_factory.mktemp('client')}/client.db") as made:
        yield made


@pytest.fixture
def sync_client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(server.url, worker_id="host:1") as made:
        yield made


@pytest.mark.processes
def test_the_sync_client_has_the_same_verbs(sync_client: SyncClient) -> None:
    verbs, same = ({name for name in vars(kind) if name[0] != "_"} for kind in (Client, SyncClient))
    assert verbs == same
    event = sync_client.publish("job", {"n": 1}, tags=["verbs"])
    (claim,) = sync_client.claim(tags=["verbs"], wait=5)
    assert claim.event.id == event.id
    assert len(sync_client.start([claim.ref])) == len(sync_client.renew([claim.ref])) == 1
    (outcome,) = sync_client.settle([Fail(claim.ref, "no", None)])
    assert not isinstance(outcome, LeaseLost)
    assert sync_client.dead_letters().total >= 1
    assert sync_client.requeue([event.id])[0].generation == 1
    (claim,) = sync_client.claim(tags=["verbs"])
    assert sync_client.reset(event.id, "by hand")["status"] == "PENDING"
    later = sync_client.publish("job", tags=["later"], delay=60, expires=timedelta(hours=1))
    assert [one.status for one in sync_client.cancel(later.id, "not wanted", children=True)] == ["CANCELLED"]
    assert sync_client.list(tags="verbs")["total"] == 1
    assert sync_client.get(event.id)["id"] == event.id
    assert sync_client.purge(1) == 0
    assert sync_client.stats().pending >= 1
    assert len(sync_client.publish_batch([sync_client.new("a"), sync_client.new("b")])) == 2


@pytest.mark.processes
def test_a_worker_in_five_lines_without_an_event_loop(sync_client: SyncClient) -> None:
    for n in range(3):
        sync_client.publish("job", n, tags=["loop"])
    done = []
    for job in sync_client.jobs(tags=["loop"], lease=2.0):
        with job:
            threading.Event().wait(0.8)  # longer than a third of the lease: it is renewed meanwhile
            done.append(job.payload)
            if job.payload == 1:
                raise ValueError("broken")
        if len(done) == 3:
            break
    assert done == [0, 1, 2]
    statuses = [event["status"] for event in sync_client.list(tags="loop")["events"]]
    assert statuses == ["COMPLETED", "PENDING", "COMPLETED"]


def outlive(job: SyncJob) -> None:
    with job:
        threading.Event().wait(0.06)
        assert job.lost
        raise KeyboardInterrupt


async def test_a_job_that_cannot_be_renewed_is_lost_when_its_lease_ends(client: Client) -> None:
    def deaf(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("no route")

    await client.publish("job", tags=["t"])
    (claim,) = await client.claim(tags=["t"])
    with SyncClient("http://127.0.0.1", transport=httpx2.MockTransport(deaf)) as sync_client:
        assert not SyncJob(sync_client, claim, 60).lost
        with pytest.raises(KeyboardInterrupt):
            outlive(SyncJob(sync_client, claim, 0.05))


async def test_a_token_is_sent_in_a_header(tmp_path: Path) -> None:
    sent: list[httpx2.Request] = []

    def note(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(401, json={"detail": "no"})

    client = Client("http://bus.example.com", token="durabus_1_2", transport=httpx2.MockTransport(note))
    with pytest.raises(ApiError, match="401"):
        await client.stats()
    assert sent[0].headers["authorization"] == "Bearer durabus_1_2"
    assert "durabus_1_2" not in str(sent[0].url)
