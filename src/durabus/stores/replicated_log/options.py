"""The options in the URL of a broker store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.limits import MAX_SECONDS
from durabus.stores.replicated_log.transport import Position

DEFAULT_HISTORY = 100_000
DEFAULT_PREFIX = "durabus"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLACE = re.compile(r"(\d{1,18}(-\d{1,18})?)?", re.ASCII)

SHOWN_BY: dict[str, tuple[str, ...]] = {
    "unknown_outcome": (
        "replicated_log/test_node.py::test_a_call_without_a_reply_raises_that_its_outcome_is_unknown",
        "replicated_log/test_node.py::test_what_was_given_up_is_void_however_late_it_comes",
    ),
    "limits": (
        "replicated_log/test_history.py::test_without_a_reader_old_events_leave_the_log_by_themselves",
        "replicated_log/test_node.py::test_an_event_that_is_too_large_is_refused_alone",
    ),
}
"""The tests that show guarantees of NATS and Kafka alike, by the field of ``Guarantees``."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every broker. ``cluster`` and ``max_history`` must be equal on all nodes: the first node sets
    them.
    """

    prefix: str = DEFAULT_PREFIX
    """Names of streams and topics begin with the prefix. All nodes of one prefix form one store."""
    cluster: str = "default"
    """A name for nodes that belong together. A node of another cluster on the same prefix is refused."""
    max_history: int = DEFAULT_HISTORY
    """How many COMPLETED and CANCELLED events of a bus every node keeps in memory, with their log entries.

    Entries that a reader with a saved position has not read yet stay, however many there are.
    """
    timeout: float = 30.0
    """How long a call waits for the broker, in seconds."""
    snapshot_every: int = 20_000
    """A node makes a snapshot after this many records, or after as many records as there are events, if that is more.
    """
    public_kept: float = 7 * 86_400.0
    """How long the public lane keeps records that all replicas have, in seconds."""
    skip_record: str = ""
    """The position of a damaged record that every node must skip. See docs/howto/repair-a-damaged-log.md."""

    @property
    def skipped_position(self) -> Position | None:
        """``skip_record`` as a position."""
        return tuple(map(int, self.skip_record.split("-"))) if self.skip_record else None


def options_from_url(url: str, extra: Mapping[str, str] | None = None) -> Options:
    """Read and check the options. ``extra`` names the options that only this broker has.

    Errors never show the URL or the value of an unknown option, because they may hold a password.
    """
    values: dict[str, object] = {}
    for name, text in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if extra is not None and name in extra:
            continue
        if name not in Options.__struct_fields__:
            known = ", ".join(sorted([*Options.__struct_fields__, *(extra or ())]))
            raise ConfigurationError(f"{name}: no such option; known are {known}")
        values[name] = text
    try:
        options = msgspec.convert(values, Options, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{urlsplit(url).scheme}: {error}") from error
    for name in ("prefix", "cluster"):
        if not _NAME.fullmatch(getattr(options, name)):
            raise ConfigurationError(f"{name}={getattr(options, name)!r}: 1 to 64 letters, digits, - and _")
    if not _PLACE.fullmatch(options.skip_record):
        raise ConfigurationError(
            f"skip_record={options.skip_record!r}: a position as the error names it, like 17 or 41-12"
        )
    if options.max_history < 0 or options.snapshot_every < 1:
        raise ConfigurationError("max_history must be 0 or more, snapshot_every 1 or more")
    if not 0 < options.timeout <= MAX_SECONDS or not 0 <= options.public_kept <= MAX_SECONDS:
        raise ConfigurationError("timeout and public_kept are seconds: above 0, and at most a hundred years")
    return options
