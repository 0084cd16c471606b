"""Whether a test that needs a server can run here."""

import os
from typing import TypeVar

import pytest

from durabus.servers.server import Server

S = TypeVar("S", bound=Server)


def installed(server: S) -> S:
    """The server, if its binary is there. Without it a laptop skips the test; `make` and CI have it or fail."""
    if not server.installed():
        if os.environ.get("CI") or os.environ.get("DURABUS_REQUIRE_SERVERS"):
            pytest.fail(server.missing())
        pytest.skip(server.missing())
    return server
