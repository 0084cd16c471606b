"""What a replica holds, to the last row."""

from durabus.stores.replicated_log.replica import Replica
from durabus.stores.replicated_log.snapshot import dump
from durabus.stores.replicated_log.store import ReplicatedLogStore

Picture = dict[tuple[str, str], bytes]


async def picture(replica: Replica) -> Picture:
    return {(part.table, part.key): part.rows async for part in dump(replica)}


async def pictures(*stores: ReplicatedLogStore) -> list[Picture]:
    """Return the pictures of all replicas at the same position of the log."""
    for store in stores:
        await store.counts()
    positions = {store._node.replica.position for store in stores}
    assert len(positions) == 1, positions
    return [await picture(store._node.replica) for store in stores]
