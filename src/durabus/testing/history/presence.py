"""Checks of the presence of processes: a name belongs to one process, and a process that shows it is not dead."""

from __future__ import annotations

from collections.abc import Iterator

from durabus.model.claim import PROCESS_ENDED, incarnation_of
from durabus.store.processes import PRESENT_FOR
from durabus.testing.history.history import FOREVER, History, Violation


def incarnations(history: History) -> Iterator[Violation]:
    """No two processes have the same name: otherwise the life of one hides the death of the other."""
    hosts: dict[str, str] = {}
    for call in history.of("show_presence"):
        name, host = call.invoke.subjects[0].token or "", call.invoke.host
        if hosts.setdefault(name, host) != host:
            yield Violation("presence", f"{hosts[name]} and {host} show the same presence {name!r}")


def taken_for_dead(history: History) -> Iterator[Violation]:
    """A process loses its claims as dead only if it has ended, or has not shown its presence for some time."""
    holders = {(claim.id, claim.fence): (call.invoke.host, claim.token) for call, claim in history.grants}
    shown = _shown(history)
    withdrawn: dict[str, float] = {}
    last: dict[str, float] = {}
    for call in history.calls:
        last[call.invoke.host] = max(call.begins, last.get(call.invoke.host, 0.0))
        if call.invoke.verb == "withdraw_presence":
            withdrawn.setdefault(call.invoke.subjects[0].token or "", call.begins)
    slack = history.settings.tolerance + 1e-6
    for entry in history.log:
        if not (entry.error or "").startswith(PROCESS_ENDED):
            continue
        host, token = holders.get((entry.id, entry.fence), ("", ""))
        name, at = incarnation_of(token or ""), history.at(entry.at_ts)
        has_ended = last.get(host, 0.0) <= at + slack or withdrawn.get(name, FOREVER) <= at + slack
        recent = [begins for begins, ends in shown.get(name, ()) if ends <= at - slack]
        if not has_ended and max(recent, default=-FOREVER) > at - PRESENT_FOR + slack:
            yield Violation(
                "presence",
                f"event {entry.id} was taken from {host}, which had shown its presence {at - max(recent):.3f} s before",
            )


def _shown(history: History) -> dict[str, list[tuple[float, float]]]:
    """Return when each process showed its presence, and when the reply came. Each claim shows it too."""
    shown: dict[str, list[tuple[float, float]]] = {}
    for call in history.calls:
        if call.ok is None:
            continue
        if call.invoke.verb == "show_presence":
            shown.setdefault(call.invoke.subjects[0].token or "", []).append((call.begins, call.ends))
        elif call.ok.claims:
            name = incarnation_of(call.ok.claims[0].token or "")
            shown.setdefault(name, []).append((call.begins, call.ends))
    return shown
