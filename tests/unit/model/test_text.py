"""Texts of errors and reasons: replaced and cut once, for every store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabus import EventQueue
from durabus.model.limits import MAX_TEXT_CHARS, stored_text
from durabus.stores.memory.store import MemoryStore


@pytest.mark.parametrize("text", ["", "KeyError: 'x'", "ünï \N{GRINNING FACE}\n\ttab", "x" * MAX_TEXT_CHARS])
def test_what_every_store_can_keep_stays_as_it_is(text: str) -> None:
    assert stored_text(text) is text or stored_text(text) == text


def test_surrogates_and_nul_become_escapes() -> None:
    assert stored_text("a\ud800b\0c") == "a\\ud800b\\x00c"


def test_a_long_text_is_cut_and_says_so() -> None:
    cut = stored_text("x" * 3_000_000)
    assert len(cut) == MAX_TEXT_CHARS
    assert cut.endswith("xxx… (cut: 3,000,000 characters)")


@given(st.text(st.sampled_from("a\ud800\0ü"), max_size=40).map(lambda text: text * 500))
def test_a_text_that_was_kept_is_kept_again(text: str) -> None:
    kept = stored_text(text)
    assert stored_text(kept) == kept
    assert len(kept) <= MAX_TEXT_CHARS
    assert kept.encode().decode() == kept


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_finalize_keeps_every_error_that_it_is_given() -> None:
    store = MemoryStore()
    await store.open()
    queue = EventQueue(store)
    await queue.publish("t", {})
    event = await queue.poll()
    assert event is not None
    await queue.finalize(event.id, error_results=["\ud800", ValueError("\ud801"), NoTextError()])
    (dead,) = (await store.list_dead_letters()).events
    assert dead.errors == ("\\ud800; ValueError: \\ud801; NoTextError",)
    await store.close()
