"""Which tests run in one process, one after the other: those of a file, and those that share what starts slowly."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST = (
    *("pipeline", "kafka", "postgresql", "distribution_postgresql", "processes", "cli", "servers", "nats"),
    *("explorer", "docs", "lab", "mutants"),
    *("conformance", "redis", "api", "dashboard", "simulation"),
)
"""Words of paths. What takes longest begins first, so that in the end nobody waits for one of it."""
TOGETHER = {"pipeline": "one Spark session", "kafka": "one Kafka broker"}


def place_in_line(node_id: str) -> int:
    """Smaller begins earlier."""
    return next((number for number, word in enumerate(LONGEST_FIRST) if is_about(node_id, word)), len(LONGEST_FIRST))


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out the tests of a lane together, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        lanes = [lane for word, lane in TOGETHER.items() if is_about(nodeid, word)]
        return lanes[0] if lanes else nodeid.split("::", maxsplit=1)[0]


def is_about(node_id: str, word: str) -> bool:
    """Whether a test belongs to a directory or a file of that name, or is an example of it or a case for it."""
    path, _, test = node_id.partition("::")
    if f"/{word}/" in path or path.endswith(f"test_{word}.py"):
        return True
    return word in TOGETHER and any(f"[{word}{end}" in test for end in ("_", ".md", "]", "-"))
