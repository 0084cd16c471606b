"""The peers of the server: which ones it serves without tokens, and which ones send too many wrong tokens.

Without tokens the server serves only programs on its own machine. It refuses requests that came through a proxy or
from a page of another web site.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache

from durabus.clock import monotonic
from durabus.http.asgi import AsgiScope
from durabus.http.problems import UNAUTHORISED, Code, Problem

NAMES = frozenset({"localhost", "localhost.localdomain"})
TRUSTED_SITES = frozenset({b"same-origin", b"none"})
FORWARDED = b"x-forwarded"
PROXY_HEADERS = frozenset(
    {b"via", b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip", b"client-ip"}
)
"""Headers that proxies add. Programs and browsers on this machine send none of them."""
IPV6_NETWORK_BITS = 64
"""A network of this size often belongs to one client, so its addresses count as one peer."""
OF_PROXIES = "1.0"
"""Some proxies use this HTTP version by default and add none of the headers above."""


def check_local(scope: AsgiScope, headers: dict[bytes, bytes], *, navigates: bool = False) -> None:
    """Refuse every request except those of programs on this machine and of the dashboard's own pages.

    ``navigates``: a person followed a link to a dashboard page. Scripts of other sites can neither read nor frame it.
    """
    ends = (scope.get("client"), scope.get("server"))
    if not all(end is not None and is_loopback(end[0]) for end in ends):
        raise Problem(
            401, "this server has no tokens, so it serves only its own machine", UNAUTHORISED, code=Code.LOCAL_ONLY
        )
    proxy = _proxy(scope, headers)
    if proxy is not None:
        raise Problem(
            401,
            f"this request came through a proxy ({proxy}), and this server has no tokens, so it serves only its own "
            "machine: start it with --tokens",
            UNAUTHORISED,
            code=Code.LOCAL_ONLY,
        )
    if not is_loopback(_host_name(headers.get(b"host", b""))):
        raise Problem(
            403, "the Host header must name this machine as localhost, 127.0.0.1 or [::1]", code=Code.FOREIGN_SITE
        )
    origin = headers.get(b"origin")
    foreign = origin is not None and origin.partition(b"://")[2] != headers.get(b"host")
    elsewhere = headers.get(b"sec-fetch-site", b"none") not in TRUSTED_SITES
    if foreign or (elsewhere and not navigates):
        raise Problem(403, "requests from other web sites are not served", code=Code.FOREIGN_SITE)


def _proxy(scope: AsgiScope, headers: dict[bytes, bytes]) -> str | None:
    """The reason to believe that a proxy sent the request; None if there is none."""
    for name in headers:
        if name in PROXY_HEADERS or name.startswith(FORWARDED):
            return f"it has the header {name.decode('latin-1')}"
    return f"it is HTTP/{OF_PROXIES}" if scope.get("http_version") == OF_PROXIES else None


def _host_name(header: bytes) -> str:
    text = header.decode("latin-1")
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether a host name or address is one that only this machine can reach."""
    if host.lower() in NAMES:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@lru_cache(maxsize=4096)
def network(host: str) -> str:
    """The name under which a peer is counted: its IPv4 address, or the network of its IPv6 address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), IPV6_NETWORK_BITS), strict=False))


ALLOWED = 60
"""Wrong tokens that a peer may send at once. After that it may send one per second."""
KEPT_PEERS = 10_000


class WrongTokens:
    """Counts the wrong tokens of each peer in a bucket that leaks one per second."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def too_many(self, host: str) -> bool:
        """Count one wrong token. Returns True if this peer has sent too many."""
        peer, now = network(host), self._now()
        level, since = self._buckets.pop(peer, (0.0, now))
        level = max(level - (now - since), 0.0) + 1
        self._buckets[peer] = (min(level, ALLOWED + 1.0), now)  # goes last: the first bucket is the oldest
        if len(self._buckets) > KEPT_PEERS:
            del self._buckets[next(iter(self._buckets))]
        return level > ALLOWED
