"""Free loopback ports for servers that are restarted."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOWEST = 15_000
CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_FIRST_CLIENT_PORT = 32_768
TRIES = 200


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, below those the kernel gives to clients.

    Among those a client that keeps dialling a server which is just restarting could take the server's port away, or
    be connected to itself.
    """
    found: list[int] = []
    candidates = range(LOWEST, max(_first_client_port(), LOWEST + 1000))
    for port in random.sample(candidates, TRIES):
        if len(found) == count:
            return found
        if is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports among {TRIES} tried from {candidates.start} to {candidates.stop - 1}")


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of the last server that still linger are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_client_port() -> int:
    return int(CLIENT_PORTS.read_text().split()[0]) if CLIENT_PORTS.exists() else USUAL_FIRST_CLIENT_PORT
