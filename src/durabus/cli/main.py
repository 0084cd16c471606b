"""Entry point of the ``durabus`` command. It checks that the extra ``cli`` is installed before it imports from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

NEEDED = ("cyclopts", "rich")
FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f"error: the durabus command needs {' and '.join(missing)}: pip install 'durabus[cli]'", file=sys.stderr)
        return FAILED
    from durabus.cli.app import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
