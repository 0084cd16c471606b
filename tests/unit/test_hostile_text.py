"""Every text for a log position or for tags is either understood or refused; no other error occurs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from durabus import EventStore, InvalidEventError, new_event, open_store
from durabus.http.schema.fields import split_tags
from durabus.model.limits import MAX_TAG_CHARS, MAX_TAGS

POSITIONS = st.one_of(
    st.text(max_size=40),
    st.integers().map(str),
    st.from_regex(r"[0-9a-f]{0,18}-[0-9a-f]{0,18}", fullmatch=True),
    st.text("0123456789abcdef-.:+ \x00", max_size=30),
)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[asyncio.Runner, EventStore]]:
    path: Path = tmp_path_factory.mktemp("log")
    with asyncio.Runner() as runner:
        url = "memory://" if request.param == "memory" else f"sqlite:///{path / 'bus.db'}"
        store = runner.run(open_store(url))
        runner.run(store.add_events([new_event("a.b", {"n": n}) for n in range(3)]))
        yield runner, store
        runner.run(store.close())


@given(POSITIONS)
@example("9" * 400)
@example("-1")
@example("1_0")
@example("\u0661")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_position_is_one_or_is_refused(log: tuple[asyncio.Runner, EventStore], position: str) -> None:
    runner, store = log
    try:
        page = runner.run(store.read_log(after=position, limit=10))
    except InvalidEventError:
        return
    # Understood: then going on from where it ends is understood too, and comes to an end.
    again = runner.run(store.read_log(after=page.next, limit=10))
    assert again.entries == []
    assert len(page.entries) <= 3


def slowly(text: str) -> tuple[str, ...] | None:
    """Parse tags step by step: names between commas, without spaces around them, each once, within the limits."""
    found: list[str] = []
    for part in text.split(",") if text else ():
        name = part.strip(" ")
        if not name.isprintable() or not 0 < len(name) <= MAX_TAG_CHARS or name[0].isspace() or name[-1].isspace():
            return None
        if name not in found:
            found.append(name)
    return tuple(found) if len(found) <= MAX_TAGS else None


@given(st.text(st.characters(codec="utf-8") | st.sampled_from(", \x00\ud800"), max_size=60))
@example(",")
@example(" a , b ,a")
def test_tags_are_what_the_slow_way_says(text: str) -> None:
    try:
        tags = split_tags(text)
    except InvalidEventError:
        assert slowly(text) is None
        return
    assert tags == slowly(text)
