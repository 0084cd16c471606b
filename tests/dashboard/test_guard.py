"""Which users the dashboard admits, what a hostile page can do with a browser, and what each tenant sees."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.api.support import ELSEWHERE, Desk
from tests.dashboard.shop import make_dead_letters, publish

from durabus import EventStore, ManualClock, new_event, open_store
from durabus.http import TokenFile, create_app
from durabus.http.auth.access import Scope
from durabus.http.dashboard.browser import safe_next
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Fail
from durabus.views import live

HOST = "bus.example.com"
HOME = f"http://{HOST}"
HTML = {"Accept": "text/html"}
PAGES = [
    "/",
    "/dashboard/events",
    "/dashboard/events/1",
    "/dashboard/events/1/cancel",
    "/dashboard/dead-letters",
    "/dashboard/dead-letters/confirm?operation=retry",
    "/dashboard/handlers",
    "/dashboard/workers",
    "/dashboard/schedules",
    "/dashboard/live",
    "/dashboard/tail",
]
FORMS = [
    "/dashboard/events/1/retry",
    "/dashboard/events/1/release",
    "/dashboard/events/1/cancel",
    "/dashboard/dead-letters/step",
    "/dashboard/workers/release",
    "/dashboard/schedules/change",
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[EventStore]:
    opened = await open_store("memory://", clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def tokens(tmp_path: Path, clock: ManualClock) -> TokenFile:
    file = TokenFile(tmp_path / "tokens.json", clock=clock)
    file.create("first", [Scope.READ])
    return file


@pytest.fixture
async def desk(store: EventStore, clock: ManualClock, tokens: TokenFile) -> AsyncIterator[Desk]:
    async with Desk(store, clock, tokens=tokens, client=ELSEWHERE, host=HOST) as made:
        yield made


@pytest.fixture
async def sqlite_desk(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Desk]:
    """A desk without tokens, on a store that checks numbers and texts."""
    store = await open_store(f"sqlite:///{tmp_path}/bus.db", clock=clock)
    async with Desk(store, clock) as made:
        yield made
    await store.close()


async def log_in(desk: Desk, token: str, next_: str = "") -> httpx2.Response:
    return await send(desk, "/dashboard/login", {"token": token, "next": next_})


async def send(desk: Desk, path: str, form: dict[str, str], **headers: str) -> httpx2.Response:
    return await desk.http.post(path, data=form, headers={"Origin": HOME, **headers})


async def dead_letter(store: EventStore, type_: str = "till.open", tags: tuple[str, ...] = ("blue",)) -> int:
    (event,) = await store.add_events([new_event(type_, {"secret": type_}, tags=tags)])
    request = ClaimRequest(bus="default", worker_id=f"worker-of-{tags[0]}:1", token=new_token(), tags=tags)
    (claim,) = await store.claim_next_events(request)
    await store.settle_events([Fail(claim.ref, f"error of {type_}", None)])
    return event.id


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_sends_those_without_a_token_to_the_login(desk: Desk, path: str) -> None:
    answer = await desk.get(path, headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/dashboard/login?next=%2F")
    assert (await desk.get(path)).status_code == 401
    assert (await desk.get(path, headers={**HTML, "Cookie": "durabus_token=durabus_0_0"})).status_code == 303


async def test_an_administrator_cancels_an_event_and_says_why(desk: Desk, store: EventStore, tokens: TokenFile) -> None:
    (event,) = await store.add_events([new_event("till.open")])
    (child,) = await store.add_events([new_event("till.count", parent_id=event.event_id)])
    _, reader = tokens.create("reader", [Scope.READ])
    await log_in(desk, reader)
    page, path = f"/dashboard/events/{event.id}", f"/dashboard/events/{event.id}/cancel"
    assert path not in (await desk.get(page, headers=HTML)).text
    assert (await send(desk, path, {"reason": "mine"})).status_code == 403
    _, token = tokens.create("ann", [Scope.ADMIN])
    await log_in(desk, token)
    assert path in (await desk.get(page, headers=HTML)).text
    assert 'name="reason" required' in (await desk.get(path, headers=HTML)).text
    assert (await send(desk, path, {"reason": " ", "children": "1"})).status_code == 400
    done = await send(desk, path, {"reason": "the till is broken", "children": "1"})
    assert (done.status_code, done.headers["location"]) == (303, page)
    assert [one and one.status for one in await store.get_events([event.id, child.id])] == ["CANCELLED"] * 2
    shown = (await desk.get(page, headers=HTML)).text
    assert "the till is broken (cancelled on the dashboard by ann)" in shown
    assert "It ended before a worker claimed it." in shown
    assert path not in shown
    assert "It has ended" in (await desk.get(path, headers=HTML)).text
    finished = await dead_letter(store)
    assert (await send(desk, f"/dashboard/events/{finished}/cancel", {"reason": "late"})).status_code == 409


@pytest.mark.parametrize("path", [*FORMS, "/dashboard/logout"])
async def test_no_form_is_taken_without_a_token(desk: Desk, path: str) -> None:
    assert (await send(desk, path, {"a": "b"})).status_code == 401


async def test_only_what_the_login_needs_is_open(desk: Desk) -> None:
    for path in ("/dashboard/login", "/dashboard/style.css", "/dashboard/script.js", "/dashboard/icon.svg"):
        assert (await desk.get(path)).status_code == 200, path
        for near in (f"{path}/", f"/{path}", f"{path}/x", path.upper(), f"{path};a"):
            assert (await desk.get(near)).status_code == 401, near


async def test_the_login_keeps_the_token_where_no_script_and_no_other_site_can_use_it(
    desk: Desk, tokens: TokenFile
) -> None:
    _, token = tokens.create("me", [Scope.READ])
    answer = await log_in(desk, token, "/dashboard/events?status=FAILED")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/dashboard/events?status=FAILED"
    assert answer.headers["set-cookie"] == f"durabus_token={token}; Path=/; HttpOnly; SameSite=Strict"
    assert (await desk.get("/", headers=HTML)).status_code == 200
    desk.http.cookies.clear()
    among_others = {**HTML, "Cookie": f'odd={{"a":[1]}}; durabus_token={token}; last'}
    assert (await desk.get("/", headers=among_others)).status_code == 200
    await log_in(desk, token)
    gone = await send(desk, "/dashboard/logout", {"a": "b"})
    assert gone.headers["set-cookie"].startswith("durabus_token=; ")
    assert "Max-Age=0" in gone.headers["set-cookie"]
    over_tls = await send(desk, "/dashboard/login", {"token": token}, **{"X-Forwarded-Proto": "https"})
    assert over_tls.headers["set-cookie"].endswith("; Secure")


async def test_a_wrong_token_and_one_that_may_not_read_are_refused_in_words(desk: Desk, tokens: TokenFile) -> None:
    answer = await log_in(desk, "durabus_0_wrong")
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert "unknown, expired or revoked" in answer.text
    assert "durabus_0_wrong" not in answer.text
    _, token = tokens.create("publisher", [Scope.PUBLISH])
    answer = await log_in(desk, token)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


async def test_a_revoked_token_is_out_at_once(desk: Desk, tokens: TokenFile) -> None:
    made, token = tokens.create("me", [Scope.READ])
    await log_in(desk, token)
    assert (await desk.get("/", headers=HTML)).status_code == 200
    tokens.revoke(made.id)
    assert (await desk.get("/", headers=HTML)).status_code == 303


async def test_the_cookie_opens_pages_and_never_the_api(desk: Desk, tokens: TokenFile) -> None:
    _, token = tokens.create("me", [Scope.ADMIN])
    await log_in(desk, token)
    for path in ("/events", "/stats", "/dead-letters", "/events/tail", "/openapi.json"):
        assert (await desk.get(path)).status_code == 401, path
    assert (await desk.post("/events", {"title": "a"}, headers={"Origin": HOME})).status_code == 401


ORIGINS = [{}, {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Origin": f"http://{HOST}.evil.example"}]


@pytest.mark.parametrize("headers", ORIGINS)
@pytest.mark.parametrize("path", [*FORMS, "/dashboard/login", "/dashboard/logout"])
async def test_a_form_of_another_site_is_refused(
    desk: Desk, store: EventStore, tokens: TokenFile, path: str, headers: dict[str, str]
) -> None:
    id_ = await dead_letter(store)
    _, token = tokens.create("me", [Scope.ADMIN])
    await log_in(desk, token)
    answer = await desk.http.post(path, data={"operation": "retry", "worker_id": "a"}, headers=headers)
    assert answer.status_code == 403
    event = await store.get_event(id_)
    assert event is not None
    assert event.status == "FAILED"


async def test_a_form_of_another_site_is_refused_without_tokens_too(store: EventStore, clock: ManualClock) -> None:
    id_ = await dead_letter(store)
    async with Desk(store, clock) as local:
        path = f"/dashboard/events/{id_}/retry"
        assert (await local.http.post(path, headers={"Origin": "http://evil.example"})).status_code == 403
        assert (await local.http.post(path)).status_code == 403
        crossing = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await local.get("/", headers=crossing)).status_code == 200
        assert (await local.get("/events", headers=crossing)).status_code == 403
        assert (await local.get("/", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 403
        assert (await local.get("/", headers={"Host": "evil.example"})).status_code == 403
        assert (await local.http.post(path, headers={"Origin": "http://127.0.0.1"})).status_code == 303


async def test_a_form_is_a_form_and_not_too_large(desk: Desk, tokens: TokenFile) -> None:
    _, token = tokens.create("me", [Scope.ADMIN])
    await log_in(desk, token)
    path = "/dashboard/dead-letters/step"
    assert (await desk.http.post(path, json={}, headers={"Origin": HOME})).status_code == 415
    assert (await send(desk, path, {"operation": "x" * 70_000})).status_code == 413
    assert (await send(desk, path, {f"f{n}": "x" for n in range(60)})).status_code == 400
    assert (await send(desk, path, {"operation": "burn"})).status_code == 400


async def test_a_user_with_a_read_token_sees_no_button_and_cannot_press_one(
    desk: Desk, store: EventStore, tokens: TokenFile
) -> None:
    id_ = await dead_letter(store)
    _, token = tokens.create("reader", [Scope.READ])
    await log_in(desk, token)
    for path in (f"/dashboard/events/{id_}", "/dashboard/dead-letters", "/dashboard/workers"):
        page = await desk.get(path, headers=HTML)
        assert page.status_code == 200
        assert "Retry" not in page.text
        assert "Purge" not in page.text
    for path in FORMS:
        answer = await send(desk, path.replace("/1/", f"/{id_}/"), {"operation": "retry", "worker_id": "a"})
        assert answer.status_code == 403, path
        assert answer.headers["content-type"].startswith("text/html")
    assert (await store.counts()).failed == 1


async def test_tenants_see_nothing_of_each_other(desk: Desk, store: EventStore, tokens: TokenFile) -> None:
    theirs = await dead_letter(store, "green.type", ("green",))
    mine = await dead_letter(store, "blue.type", ("blue",))
    (waiting,) = await store.add_events([new_event("green.waiting", tags=["green"])])
    await store.claim_next_events(ClaimRequest(bus="default", worker_id="green-host:1", token=new_token(), lease=600))
    _, token = tokens.create("blue", [Scope.ADMIN], tags=["blue"])
    await log_in(desk, token)
    seen = ""
    for path in PAGES[:-1]:
        page = await desk.get(path.replace("/1", f"/{mine}"), headers=HTML)
        assert page.status_code == (403 if path == "/dashboard/handlers" else 200), path
        assert "green" not in page.text, path
        seen += page.text
    assert "blue.type" in seen
    assert re.search(r"Dead letters <span class=\"quiet\">1</span>", seen)
    for id_ in (theirs, waiting.id):
        assert (await desk.get(f"/dashboard/events/{id_}", headers=HTML)).status_code == 404
        assert (await desk.get(f"/dashboard/events?id={id_}", headers=HTML)).status_code == 404
        assert (await send(desk, f"/dashboard/events/{id_}/retry", {"a": "b"})).status_code == 404
        assert (await send(desk, f"/dashboard/events/{id_}/release", {"a": "b"})).status_code == 404
        assert (await send(desk, f"/dashboard/events/{id_}/cancel", {"reason": "b"})).status_code == 404
    assert (await desk.get("/dashboard/events?tags=green", headers=HTML)).status_code == 403
    assert (await send(desk, "/dashboard/workers/release", {"worker_id": "green-host:1"})).status_code == 303
    step = await send(desk, "/dashboard/dead-letters/step", {"operation": "purge"}, Accept="application/json")
    assert step.json() == {"done": 1, "before": None}
    assert [await store.has_event(id_) for id_ in (theirs, mine, waiting.id)] == [True, False, True]
    event = await store.get_event(waiting.id)
    assert event is not None
    assert event.status == "PROCESSING"


async def test_a_token_for_other_buses_is_refused(desk: Desk, store: EventStore, tokens: TokenFile) -> None:
    _, token = tokens.create("elsewhere", [Scope.ADMIN], buses=["elsewhere"])
    await log_in(desk, token)
    assert (await desk.get("/dashboard/events", headers=HTML)).status_code == 403
    assert (await desk.get("/dashboard/events?bus=elsewhere", headers=HTML)).status_code == 200
    assert (await send(desk, "/dashboard/dead-letters/step", {"operation": "purge"})).status_code == 403


async def test_what_events_carry_is_text_and_never_markup(store: EventStore, clock: ManualClock) -> None:
    evil = "<script>alert(1)</script>\"'><img/src=x/onerror=alert(1)>"
    (event,) = await store.add_events(
        [new_event(f"type{evil}", {"x": evil}, metadata={"title": evil, "description": evil}, tags=["<b>tag</b>"])]
    )
    (claim,) = await store.claim_next_events(
        ClaimRequest(bus="default", worker_id="<i>host</i>:1", token=new_token(), lease=600)
    )
    async with Desk(store, clock) as local:
        pages = [(await local.get(path)).text for path in PAGES[:-1]]
        await store.settle_events([Fail(claim.ref, evil, None)])
        pages += [(await local.get(path)).text for path in PAGES[:-1]]
        pages.append((await local.get("/dashboard/events", params={"type": f'"{evil}', "tags": '"><b>'})).text)
        pages.append((await local.get("/dashboard/events", params={"id": evil})).text)
    assert event.id == 1
    for page in pages:
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "<b>tag" not in page
        assert "<i>host" not in page


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/dashboard/events?before=" + "9" * 5_000, 400),
        ("/dashboard/events?before=0", 400),
        ("/dashboard/events?bus=%00", 400),
        ("/dashboard/events?bus=" + "b" * 256, 400),
        ("/dashboard/events?tags=%00", 400),
        ("/dashboard/events?type=%00", 400),
        ("/dashboard/events?id=" + "9" * 5_000, 400),
        ("/dashboard/events?id=%00", 404),
        ("/dashboard/events?id=0190a5d2-2f2c-7000-8000-000000000000", 404),
        ("/dashboard/events/" + "9" * 5_000, 404),
        ("/dashboard/dead-letters/confirm?operation=retry&id=9223372036854775807", 200),
        ("/dashboard/dead-letters/confirm?operation=retry&id=9223372036854775808", 400),
        ("/dashboard/dead-letters/confirm?operation=burn", 400),
    ],
)
async def test_an_address_that_no_page_links_to_gets_its_error_status(sqlite_desk: Desk, path: str, code: int) -> None:
    answer = await sqlite_desk.get(path, headers=HTML)
    assert answer.status_code == code, answer.text


async def test_numbers_that_no_page_sends_are_ignored(sqlite_desk: Desk) -> None:
    sent = {"operation": "retry", "number": "9" * 5_000, "done": "\N{ARABIC-INDIC DIGIT ONE}"}
    headers = {"Origin": "http://127.0.0.1", "Accept": "application/json"}
    answer = await sqlite_desk.http.post("/dashboard/dead-letters/step", data=sent, headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"done": 0, "before": None})


async def test_a_page_may_load_nothing_from_other_sites_and_no_site_may_frame_it(desk: Desk) -> None:
    answer = await desk.get("/dashboard/login")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", answer.text)
    assert not re.search(r"<[^>]+\s(?:style|on\w+)=", answer.text)


@pytest.mark.parametrize(
    "wanted",
    [
        "http://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/events",
        "javascript:alert(1)",
        "/dashboard/\r\nX: 1",
        "",
    ],
)
def test_the_login_leads_nowhere_else(wanted: str) -> None:
    assert safe_next(wanted, "") == "/"
    assert safe_next(wanted, "/bus") == "/bus/"


async def test_every_link_of_a_mounted_dashboard_stays_below_its_mount(tmp_path: Path) -> None:
    app = create_app("memory://")
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1), root_path="/bus")
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in PAGES[:-1]:
            if path.startswith("/dashboard/events/1"):
                continue
            page = await client.get(f"/bus{path}")
            assert page.status_code == 200, path
            links = re.findall(r"(?:href|src|action|data-source|data-event)=\"(/[^\"]*)\"", page.text)
            assert links
            assert all(link.startswith("/bus/") for link in links), links
    await app.close()


async def test_counts_that_are_old_say_so(
    store: EventStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "AT_LEAST_EVERY", 3600.0)  # the server does not count again during this test
    async with Desk(store, clock) as local:
        page = ""
        while not re.search(r"Waiting</dt><dd><a[^>]*>0<", page):
            page = (await local.get("/")).text
        assert "were counted" not in page
        clock.advance(40)
        page = (await local.get("/")).text
        await publish(store, "default", 2)
        await make_dead_letters(store, "default")
        letters = (await local.get("/dashboard/dead-letters")).text
    assert "dead letters were counted 40 s ago" in page
    assert re.search(r"<h1>Dead letters <span[^>]*>2<", letters), "the groups below it hold all of them"
