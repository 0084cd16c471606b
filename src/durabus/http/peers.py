"""Who counts as one peer."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

IPV6_NETWORK_BITS = 64
"""One client may have all addresses of such a network."""


@lru_cache(maxsize=4096)
def network(host: str) -> str:
    """The address of a peer; of IPv6 its network, and of IPv4 in IPv6 the IPv4 address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), IPV6_NETWORK_BITS), strict=False))
