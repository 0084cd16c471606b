"""A second way to the server: what an administrator with a prompt can see and do."""

from typing import Any

import redis

from durabus import EventStore, StoreUnavailableError, new_event
from durabus.stores.redis.connection import parse_url
from durabus.stores.redis.layout import key_names


def prompt(url: str) -> redis.Redis:
    """Return a plain client on the server of a store's URL."""
    return redis.Redis.from_url(url.partition("?")[0])


def run(admin: redis.Redis, *command: str | bytes | int) -> Any:
    """Run a command that the client has no method for."""
    answer: Any = admin.execute_command(*command)  # type: ignore[no-untyped-call]
    return answer


def keys_of(admin: redis.Redis, prefix: str) -> set[str]:
    """Return every key of a store that exists."""
    return {str(name, "utf-8") for name in admin.scan_iter(f"{{{prefix}}}:*", count=1000)}


def forget_keys(url: str) -> None:
    """Remove everything of the store behind ``url``."""
    with prompt(url) as server:
        server.unlink(*key_names(parse_url(url).prefix))


async def publish_in_the_end(store: EventStore) -> None:
    """Publish after the server is back. A store with short timeouts may need a few tries on a busy machine."""
    event = new_event("t")
    for left in reversed(range(20)):
        try:
            await store.add_events([event])
        except StoreUnavailableError:
            if not left:
                raise
        else:
            return
