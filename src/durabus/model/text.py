"""Texts that others wrote, errors and reasons, as every store can keep and show them."""

from __future__ import annotations

from collections.abc import Sequence

MAX_TEXT_CHARS = 8_192
JOINT = "; "


def stored_text(text: str) -> str:
    r"""``text`` as it is kept, the same on every store.

    Lone surrogates and NUL become escapes such as ``\ud800``, because some databases take neither. What is longer than
    ``MAX_TEXT_CHARS`` is cut and ends with a note of its length. A text that was treated so before stays as it is.
    """
    kept = text
    if not text.isascii() or "\0" in text[: MAX_TEXT_CHARS + 1]:
        kept = text[: MAX_TEXT_CHARS + 1].encode(errors="backslashreplace").decode().replace("\0", "\\x00")
    if len(text) <= MAX_TEXT_CHARS and len(kept) <= MAX_TEXT_CHARS:
        return kept
    note = f"… (cut: {len(text):,} characters)"
    return kept[: MAX_TEXT_CHARS - len(note)] + note


def stored_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Several that become one: as one already, if together they are too long."""
    kept = tuple(map(stored_text, texts))
    joined = JOINT.join(kept)
    return kept if len(joined) <= MAX_TEXT_CHARS else (stored_text(joined),)
