"""What a store has declared that it cannot do, and refuses, no test can ask of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import Any

import pytest

from durabus.errors import UnsupportedByStore

DECLARABLE = ("idempotency_keys", "serial_modes")
"""Features that tests of other things use by the way."""


def obeying(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The test, skipped where its store refuses what it declares. Any other refusal is a failure, as before."""

    @wraps(test)
    async def run(self: Any, *args: Any, **fixtures: Any) -> None:
        try:
            await test(self, *args, **fixtures)
        except (UnsupportedByStore, BaseExceptionGroup) as error:
            features = fixtures["lab"].store.features if "lab" in fixtures else None
            for feature in DECLARABLE:
                declared = features is not None and not getattr(features, feature)
                if declared and any(f"{feature}=False" in str(one) for one in _refusals(error)):
                    pytest.skip(f"declared: {feature}=False")
            raise

    return run


def _refusals(error: BaseException) -> Iterator[UnsupportedByStore]:
    if isinstance(error, UnsupportedByStore):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _refusals(one)
