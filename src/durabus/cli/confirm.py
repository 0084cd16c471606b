"""A question before something that cannot be taken back."""

from __future__ import annotations

import sys

from durabus.cli.failures import CommandFailed, Exit

YES = {"y", "yes"}


def confirm(question: str, consequence: str) -> None:
    """Ask on the terminal. Without one, or without a yes, the command ends and nothing was done."""
    if not sys.stdin.isatty():
        why = f"{consequence}, and there is no terminal to ask on"
        raise CommandFailed("not confirmed", why, "add --yes", code=Exit.USAGE)
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in YES:
        raise CommandFailed("not confirmed", "nothing was done")
