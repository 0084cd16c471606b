"""The stand-alone server: long polls, the tail, stopping; and the app inside another one."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, cast

import httpx2
import msgspec
import pytest
from litestar import Litestar, asgi
from litestar.types import Receive, Scope, Send
from tests.api.support import Desk, Server

from durabus import DurabusError, EventStore, ManualClock, open_store
from durabus.cli.app import run
from durabus.client import Client
from durabus.http import HttpApi, Settings, TokenFile, create_app
from durabus.http.auth.access import Scope as Access
from durabus.http.middleware import relative_path
from durabus.http.serving import listen, served

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that do not stop it. Each test has tags of its own."""
    with Server(f"sqlite:///{tmp_path_factory.mktemp('served')}/served.db") as made:
        yield made


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        yield client


def publish(http: httpx2.Client, tags: str = "work") -> int:
    id_: int = http.post("/events", json={"title": "job", "tags": tags}).json()["id"]
    return id_


def later(seconds: float, action: Any) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def test_a_long_poll_ends_when_work_comes(http: httpx2.Client, server: Server) -> None:
    publish(http, "poll-other")  # work, but not for this one: the poll must not spin, and must not miss the next
    timer = later(0.3, lambda: httpx2.post(f"{server.url}/events", json={"title": "job", "tags": "poll"}))
    begun = monotonic()
    answer = http.post("/claims", json={"worker_id": "w:1", "tags": "poll", "wait": 20})
    timer.join()
    assert len(answer.json()["claims"]) == 1
    assert 0.2 < monotonic() - begun < 18


def test_a_long_poll_ends_empty_when_its_time_is_over(http: httpx2.Client) -> None:
    begun = monotonic()
    answer = http.post("/claims", json={"worker_id": "w:1", "tags": "nothing", "wait": 0.5})
    assert (answer.status_code, answer.json()) == (200, {"claims": []})
    assert 0.4 < monotonic() - begun < 20


def test_nothing_is_claimed_for_a_client_that_went_away(http: httpx2.Client, server: Server) -> None:
    with long_poll(server, b'{"worker_id": "gone:1", "tags": "gone", "wait": 20}'):
        http.get("/readyz")
    id_ = publish(http, "gone")
    http.get("/readyz")
    claims = http.post("/claims", json={"worker_id": "w:1", "tags": "gone", "wait": 10}).json()["claims"]
    assert [claim["id"] for claim in claims] == [id_]
    assert http.get(f"/events/{id_}").json()["retry_count"] == 0


def test_the_tail_sends_every_transition_and_resumes_where_it_stopped(http: httpx2.Client) -> None:
    seen: list[tuple[str, str]] = []
    with http.stream("GET", "/events/tail") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        id_ = publish(http, "tail")
        http.get("/events/subscribe?tags=tail&worker_id=w:1")
        http.post(f"/events/{id_}/complete", json={"worker_id": "w:1"})
        position = ""
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                position = value
            if name == "data":
                entry = msgspec.json.decode(value)
                seen.append((position, entry["action"]))
                assert (entry["position"], entry["id"]) == (position, id_)
            if len(seen) == 3:
                break
    assert [action for _, action in seen] == ["PUBLISHED", "PICKED", "COMPLETED"]
    with http.stream("GET", "/events/tail", headers={"Last-Event-ID": seen[0][0]}) as stream:
        again = next(value for line in stream.iter_lines() if (value := line.removeprefix("event: ")) != line)
    assert again == "PICKED"


def test_the_tail_of_a_tenant_has_only_its_own(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    _, everything = tokens.create("all", [Access.ADMIN])
    _, mine = tokens.create("ann", [Access.READ], tags=["ann"])
    with Server(f"sqlite:///{tmp_path}/served.db", "--tokens", str(tokens.path)) as server:
        http = httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {everything}"})
        ids = [publish(http, tags) for tags in ("bob", "ann", "bob", "ann")]
        for _ in range(4):
            http.get("/events/subscribe?tags=ann,bob&worker_id=w:1")
        seen = []
        headers = {"Authorization": f"Bearer {mine}"}
        with http.stream("GET", "/events/tail?after=", headers=headers) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    seen.append(msgspec.json.decode(line.removeprefix("data: "))["id"])
                if len(seen) == 4:
                    break
        assert sorted(seen) == sorted([ids[1], ids[3]] * 2)
        http.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_stops_on_a_signal_and_ends_every_long_poll(tmp_path: Path, number: signal.Signals) -> None:
    with Server(f"sqlite:///{tmp_path}/served.db") as server, ExitStack() as stack:
        polls = [stack.enter_context(long_poll(server, b'{"worker_id": "w:1", "wait": 30}')) for _ in range(3)]
        with httpx2.stream("GET", f"{server.url}/events/tail", timeout=30) as tail:
            lines = tail.iter_lines()
            assert next(lines) == ": durabus"
            answered = 'durabus_http_requests_total{method="POST",route="/claims"'
            assert answered not in httpx2.get(f"{server.url}/metrics").text
            begun = monotonic()
            server.process.send_signal(number)
            assert [line for line in lines if line] == []
        answers = [poll.makefile("rb").read() for poll in polls]
        assert server.process.wait(25) == 0
        assert monotonic() - begun < 25
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'\r\n\r\n{"claims":[]}')
    assert "stopped\n" in server.errors


def long_poll(server: Server, body: bytes) -> socket.socket:
    """A connection on which a claim was asked for."""
    head = b"POST /claims HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(head % len(body) + body)
    return connection


def test_a_running_request_gets_its_reply_before_the_server_stops(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/served.db") as server:
        body = b'{"title": "last"}'
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(
                b"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body)
            )
            httpx2.get(f"{server.url}/livez")
            server.process.send_signal(signal.SIGTERM)
            connection.sendall(body)
            answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 201")
        assert server.process.wait(25) == 0


def test_the_server_does_not_listen_beyond_this_machine_without_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["serve", "--host", "0.0.0.0", "--port", "0", "--store", f"sqlite:///{tmp_path}/x.db"]  # noqa: S104
    assert run(command) == 2
    assert "durabus tokens create" in capsys.readouterr().err
    assert run([*command, "--tokens", f"{tmp_path}/no.json"]) == 2
    assert "no.json" in capsys.readouterr().err


def test_beyond_this_machine_every_route_needs_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.json")
    assert run(["tokens", "create", "ops", "--scope", "admin", "--tokens", file]) == 0
    token = capsys.readouterr().out.strip()
    with Server(f"sqlite:///{tmp_path}/x.db", "--host", "0.0.0.0", "--tokens", file) as server:  # noqa: S104
        http = httpx2.Client(base_url=f"http://127.0.0.1:{server.port}")
        holder = {"Authorization": f"Bearer {token}"}
        for path, methods in http.get("/openapi.json", headers=holder).json()["paths"].items():
            for method in methods:
                code = http.request(method, path.replace("{id}", "1")).status_code
                assert code == (200 if path in {"/livez", "/readyz"} else 401), (method, path)
        assert run(["tokens", "list", "--json", "--tokens", file]) == 0
        listing = capsys.readouterr().out
        (known,) = msgspec.json.decode(listing)
        assert token not in listing
        assert run(["tokens", "revoke", known["id"], "--tokens", file]) == 0
        assert http.get("/events", headers=holder).status_code == 401
        assert token not in "".join(server.errors)
        http.close()


def test_a_taken_port_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve", "--port", port, "--store", f"sqlite:///{tmp_path}/x.db"]) == 1
    assert port in capsys.readouterr().err


# --- inside another app ---------------------------------------------------------------------------------------------


def mounted_as_starlette_does(api: HttpApi) -> Any:
    """The path stays whole, and ``root_path`` says how much of it was for the mount."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await api({**scope, "root_path": "/bus"}, receive, send)

    return app


def mounted_by_litestar(api: HttpApi) -> Any:
    @asgi("/bus", is_mount=True, copy_scope=True)
    async def bus(scope: Scope, receive: Receive, send: Send) -> None:
        await api(cast("Any", scope), cast("Any", receive), cast("Any", send))

    return Litestar([bus])


@pytest.mark.parametrize("mounted", [mounted_as_starlette_does, mounted_by_litestar])
async def test_a_mounted_app_works_without_a_lifespan(tmp_path: Path, mounted: Callable[[HttpApi], Any]) -> None:
    api = create_app(f"sqlite:///{tmp_path}/mounted.db")
    transport = httpx2.ASGITransport(app=mounted(api), client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.post("/bus/events", json={"title": "x", "tags": "bus"})).status_code == 201
        assert (await http.get("/bus/events?tags=bus")).json()["total"] == 1
        assert (await http.get("/bus/livez")).status_code == 200
        assert (await http.get("/bus/bus/livez")).status_code == 404
    await api.close()


async def test_with_a_lifespan_the_store_is_opened_and_closed(tmp_path: Path) -> None:
    api = create_app(f"sqlite:///{tmp_path}/served.db")
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[Any] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(api(scope, incoming.get, outgoing.put))
    await incoming.put({"type": "lifespan.startup"})
    assert (await outgoing.get())["type"] == "lifespan.startup.complete"
    assert (await api.api.store.counts()).pending == 0
    await incoming.put({"type": "lifespan.shutdown"})
    assert (await outgoing.get())["type"] == "lifespan.shutdown.complete"
    await running


async def test_any_error_at_startup_is_reported_to_the_asgi_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = create_app(f"sqlite:///{tmp_path}/served.db")

    async def break_() -> None:
        raise KeyError("a bug in a driver")

    monkeypatch.setattr(api.api.store, "open", break_)
    answers: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        answers.append(message)

    await api({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)

    assert answers == [{"type": "lifespan.startup.failed", "message": "'a bug in a driver'"}]


async def test_a_store_that_was_handed_over_open_stays_open(store: EventStore, clock: ManualClock) -> None:
    async with Desk(store, clock) as desk:
        await desk.publish()
    assert (await store.counts()).pending == 1


async def test_the_server_finds_orphans_while_no_worker_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    store, found = await open_store("memory://"), asyncio.Event()
    look = store.expire_events

    async def look_and_tell(**options: Any) -> int:
        taken = await look(**options)
        if taken:
            found.set()
        return taken

    monkeypatch.setattr(store, "expire_events", look_and_tell)
    app = create_app(store, settings=Settings(lease=0.05, scan_every=0.05))
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await http.post("/events", json={"title": "x", "tags": "a"})
        await http.get("/events/subscribe?tags=a&worker_id=w:1")
        await found.wait()
        log = (await http.get("/events/1/log")).json()
    assert [entry["action"] for entry in log] == ["PICKED", "ABANDONED"]
    await app.close()
    await store.close()


async def test_a_store_that_cannot_be_opened_gives_an_error_response(tmp_path: Path) -> None:
    folder = tmp_path / "a secret place"
    app = create_app(f"sqlite:///{folder}/no/such/folder.db")
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.get("/events")
    assert answer.status_code == 503
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("/events", "", "/events"),
        ("/bus/events", "/bus", "/events"),
        ("/bus", "/bus", "/"),
        ("/business", "/bus", "/business"),
        ("/events", "/bus", "/events"),
        ("/bus/bus/livez", "/bus", "/bus/livez"),
    ],
)
def test_paths_below_a_mount(path: str, root: str, below: str) -> None:
    assert relative_path({"path": path, "root_path": root}) == below


async def test_a_websocket_is_closed(store: EventStore, clock: ManualClock) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with Desk(store, clock) as desk:
        await desk.app({"type": "websocket", "path": "/events", "headers": []}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_response_in_two_parts_does_not_wait_for_the_client_to_confirm_the_first() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_program_serves_the_app_beside_other_code_and_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    store = await open_store("memory://")
    async with served(create_app(store)) as url, Client(url) as client:
        await client.publish("job", {})
        assert (await client.stats()).pending == 1
    with (
        pytest.raises(OSError, match=r"refused|Connect"),
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))),
    ):
        pass
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await store.close()


async def test_a_server_that_cannot_start_raises_in_the_program_that_serves_it(tmp_path: Path) -> None:
    with pytest.raises(DurabusError, match="no/such/folder"):
        async with served(create_app(f"sqlite:///{tmp_path}/no/such/folder/bus.db")):
            pass


async def test_no_page_of_the_framework_is_served(desk: Desk) -> None:
    """The explorers of the framework load their scripts from other hosts."""
    for page in ("", "/redoc", "/swagger", "/elements", "/rapidoc", "/scalar", "/openapi.json", "/openapi.yaml"):
        assert (await desk.get(f"/schema{page}")).status_code == 404, page
    assert (await desk.get("/openapi.json")).json()["openapi"].startswith("3.1")
