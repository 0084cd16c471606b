"""What every test shares.

Async tests need no marker: write `async def test_...` and the anyio plugin runs it (`anyio_mode = "auto"`).
Async fixtures work the same way.
"""

import asyncio
import functools
import inspect

import pytest
from hypothesis import settings

# A slow machine must not fail a property; the timeout catches what hangs.
settings.register_profile("durabus", parent=settings(), deadline=None)
settings.load_profile("durabus")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The one event loop durabus promises to run on; session-wide, so fixtures of any scope may be async."""
    return "asyncio"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Cancel an async test shortly before pytest-timeout would end the whole run.

    A stack dump does not show where a coroutine waits; a cancelled test fails alone and its traceback does.
    """
    test = pyfuncitem.obj
    limit = _timeout_of(pyfuncitem)
    if limit == 0 or not inspect.iscoroutinefunction(test):
        return

    @functools.wraps(test)
    async def test_with_deadline(**arguments: object) -> None:
        async with asyncio.timeout(0.8 * limit) as deadline:
            await test(**arguments)
        assert not deadline.expired(), "the test swallowed the cancellation that came with its deadline"

    pyfuncitem.obj = test_with_deadline


def _timeout_of(item: pytest.Function) -> float:
    """Seconds, from the place pytest-timeout takes them: marker, command line, pyproject.toml; 0 is none."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    option = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if option is None else option)
