"""Whether a test that needs a server can run here."""

import os
from typing import TypeVar

import pytest

from durabus.testing.servers.postgresql import BINARIES, DistributionPostgreSQLServer
from durabus.testing.servers.server import Server

S = TypeVar("S", bound=Server)


def installed(server: S) -> S:
    """Return the server if its binary is there. Without it a laptop skips the test; `make` and CI fail."""
    if not server.installed():
        if os.environ.get("CI") or os.environ.get("DURABUS_REQUIRE_SERVERS"):
            pytest.fail(server.missing())
        pytest.skip(server.missing())
    return server


def distribution(**settings: str) -> DistributionPostgreSQLServer:
    """The distribution's PostgreSQL beside the one that the other tests use. No lock brings it: it may be missing."""
    if os.environ.get(BINARIES):
        pytest.skip(f"{BINARIES} is set: the other tests use this server already")
    if not DistributionPostgreSQLServer.installed():
        pytest.skip(DistributionPostgreSQLServer.missing())
    return DistributionPostgreSQLServer(settings=settings)
