"""Settlements and references to claims, packed small: a busy log is made of them."""

from __future__ import annotations

import msgspec

from durabus.model.claim import ClaimRef
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement

Ref = tuple[int, str, int]
"""A ``ClaimRef`` on its way."""


class Completion(msgspec.Struct, frozen=True, array_like=True, tag="c", omit_defaults=True):
    """A ``Complete`` on its way."""

    ref: Ref
    execution_time_ms: float | None = None
    status_code: int | None = None
    results: tuple[HandlerResult, ...] = ()
    errors: tuple[str, ...] = ()

    def settlement(self) -> Settlement:
        """As the kernel knows it."""
        return Complete(ClaimRef(*self.ref), self.results, self.errors, self.execution_time_ms, self.status_code)


class Failure(msgspec.Struct, frozen=True, array_like=True, tag="f", omit_defaults=True):
    """A ``Fail`` on its way."""

    ref: Ref
    error: str
    delay: float | None
    execution_time_ms: float | None = None
    status_code: int | None = None
    results: tuple[HandlerResult, ...] = ()

    def settlement(self) -> Settlement:
        """As the kernel knows it."""
        ref = ClaimRef(*self.ref)
        return Fail(ref, self.error, self.delay, self.results, self.execution_time_ms, self.status_code)


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="r", omit_defaults=True):
    """A ``Release`` on its way."""

    ref: Ref
    delay: float = 0.0
    results: tuple[HandlerResult, ...] = ()

    def settlement(self) -> Settlement:
        """As the kernel knows it."""
        return Release(ClaimRef(*self.ref), self.delay, self.results)


def wire(settlement: Settlement) -> Completion | Failure | Returned:
    """A settlement as ``SettleEvents`` carries it."""
    ref = wire_ref(settlement.ref)
    match settlement:
        case Complete(results=results, errors=errors, execution_time_ms=ms, status_code=code):
            return Completion(ref, ms, code, results, errors)
        case Fail(error=error, delay=delay, results=results, execution_time_ms=ms, status_code=code):
            return Failure(ref, error, delay, ms, code, results)
        case Release(delay=delay, results=results):
            return Returned(ref, delay, results)


def wire_ref(ref: ClaimRef) -> Ref:
    """A reference as commands carry it."""
    return ref.id, ref.token, ref.fence
