"""The limits of events and options, the checks that enforce them, and the form in which texts are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from durabus.errors import ConfigurationError, InvalidEventError

MAX_TEXT_CHARS = 8_192
JOINT = "; "

E = TypeVar("E", bound=StrEnum)


def stored_text(text: str) -> str:
    r"""Return an error or a reason as every store keeps it.

    Lone surrogates and NUL become escapes such as ``\ud800``, because some databases accept neither. A text longer than
    ``MAX_TEXT_CHARS`` is cut and ends with a note of its length. Calling this again changes nothing.
    """
    kept = text
    if not text.isascii() or "\0" in text[: MAX_TEXT_CHARS + 1]:
        kept = text[: MAX_TEXT_CHARS + 1].encode(errors="backslashreplace").decode().replace("\0", "\\x00")
    if len(text) <= MAX_TEXT_CHARS and len(kept) <= MAX_TEXT_CHARS:
        return kept
    note = f"… (cut: {len(text):,} characters)"
    return kept[: MAX_TEXT_CHARS - len(note)] + note


def stored_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Return several texts that a store will join. If the joined text would be too long, return it joined and cut."""
    kept = tuple(map(stored_text, texts))
    joined = JOINT.join(kept)
    return kept if len(joined) <= MAX_TEXT_CHARS else (stored_text(joined),)


MAX_PAYLOAD_BYTES = 1_048_576
MAX_NAME_CHARS = 255
SCHEDULES_SUFFIX = "~schedules"
"""The end of the name of a bus with the states of schedules. Users cannot name such a bus."""
MAX_TAGS = 32
MAX_TAG_CHARS = 64
MAX_PRIORITY = 1_000
MAX_DEPTH = 64
MAX_BATCH = 10_000
MAX_ATTEMPTS = 1_000_000
MAX_SECONDS = 100 * 365.25 * 86_400
"""A hundred years. Some systems cannot show a later time as a date."""

Duration = float | timedelta


def is_attempts(value: object) -> bool:
    """Return whether ``value`` is a valid limit for the attempts of an event."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ATTEMPTS


def seconds(value: Duration, option: str, *, allow_zero: bool = True) -> float:
    """Return a duration option as float seconds, or raise if it is negative, infinite or not a number."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigurationError(f"{option}={value!r}: must be seconds (a number) or a timedelta")
    if not 0 <= number < float("inf") or (number == 0 and not allow_zero):
        least = "0 or more" if allow_zero else "more than 0"
        raise ConfigurationError(f"{option}={value!r}: must be {least} seconds and finite")
    if number > MAX_SECONDS:
        raise ConfigurationError(f"{option} is too long: the limit is {MAX_SECONDS:.0f} seconds, a hundred years")
    return float(number)


def check_name(value: str, what: str) -> str:
    """Return the name of a bus, event type, handler or key, or raise if it is not 1 to 255 printable characters."""
    if not isinstance(value, str):
        raise InvalidEventError(f"{what}={value!r}: must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidEventError(f"{what} is empty: it must have 1 to {MAX_NAME_CHARS} characters")
    if len(value) > MAX_NAME_CHARS:
        raise InvalidEventError(f"{what} has {len(value)} characters ({value[:40]!r}…): the limit is {MAX_NAME_CHARS}")
    if not value.isprintable():
        raise InvalidEventError(f"{what}={value!r}: control characters and surrogates are not allowed")
    if what == "bus" and value.endswith(SCHEDULES_SUFFIX):
        raise InvalidEventError(
            f"bus={value!r}: a name that ends with {SCHEDULES_SUFFIX!r} belongs to the schedules of a bus"
        )
    return value


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags as a tuple without duplicates, in the order given, or raise if one is invalid."""
    if isinstance(tags, str):
        raise InvalidEventError(f"tags={tags!r}: must be a list of strings, not one string")
    try:
        given = tuple(tags)
    except TypeError as error:
        raise InvalidEventError(f"tags={tags!r}: must be a list of strings") from error
    unique = tuple(dict.fromkeys(check_name(tag, "tag") for tag in given))
    if len(unique) > MAX_TAGS:
        raise InvalidEventError(f"{len(unique)} tags: the limit is {MAX_TAGS} for one event")
    for tag in unique:
        if len(tag) > MAX_TAG_CHARS or "," in tag or tag != tag.strip():
            raise InvalidEventError(
                f"tag={tag!r}: must have at most {MAX_TAG_CHARS} characters, no comma, no space at either end"
            )
    return unique


def check_priority(priority: int) -> int:
    """Return a priority, or raise if it is out of range. Larger goes first; 0 is the default."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidEventError(f"priority={priority!r}: must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


def check_batch(size: int, option: str = "limit") -> int:
    """Return the number of items that a call asks for, or raise if it is out of range."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
        raise ConfigurationError(f"{option}={size!r}: must be a whole number from 1 to {MAX_BATCH}")
    return size


def choice(kind: type[E], value: E | str, option: str) -> E:
    """Return ``value`` as a member of ``kind``."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigurationError(f"{option}={value!r}: must be one of {[one.value for one in kind]}") from None
