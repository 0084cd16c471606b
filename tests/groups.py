"""Groups of tests. The tests of a group run in one process, one after the other.

A group is the tests of one file, or those that share a server or a session that starts slowly.
"""

from __future__ import annotations

from functools import cache

from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST = (
    *("pipeline", "kafka", "postgresql", "distribution_postgresql"),
    *("processes", "cli", "worker", "seeds", "servers", "runtime", "nats", "lab"),
    *("docs", "explorer", "mutants", "conformance", "redis", "api", "dashboard", "simulation"),
)
"""Words of paths. The longest groups begin first, so that no process works alone at the end. After them come the tests
that mostly wait: they use the time in which the pipeline keeps both cores busy."""
TOGETHER = {"pipeline": "a Spark session", "kafka": "one Kafka broker"}
SECOND_SESSION = "test_pr"
"""Files about the pipeline whose names come after this share a second Spark session. Both halves take about as long.
With one session, its process would still work when all others have ended."""


def start_order(node_id: str) -> int:
    """Tests with a smaller number begin earlier."""
    return next((number for number, word in enumerate(LONGEST_FIRST) if is_about(node_id, word)), len(LONGEST_FIRST))


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out the tests of a group together, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", maxsplit=1)[0]
        words = [word for word in TOGETHER if is_about(nodeid, word)]
        if not words:
            return path
        second = words[0] == "pipeline" and path.rpartition("/")[2] > SECOND_SESSION
        return f"{TOGETHER[words[0]]}{' of the second half' if second else ''}"


def is_about(node_id: str, word: str) -> bool:
    """Return whether a test is in a directory or file of that name, or is an example or a case of that name."""
    path, _, test = node_id.partition("::")
    if _is_path_about(path, word):
        return True
    return word in TOGETHER and any(f"[{word}{end}" in test for end in ("_", ".md", "]", "-"))


@cache
def _is_path_about(path: str, word: str) -> bool:
    return f"/{word}/" in path or path.endswith(f"test_{word}.py")
