"""The ceiling on Redis: complete a batch and claim the next one in one script of a few bulk commands.

A token is checked once a batch, and only the log has a command for each event. It has no deduplication, no log of
publishing and claiming, no retries, no priorities and no hints.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import redis
import uuid_utils

from benchmarks import raw

CLAIM = 100
STEP = """
local now = redis.call('TIME')
local expires = tonumber(now[1]) + tonumber(now[2]) / 1e6 + 30
if #ARGV > 3 and redis.call('DEL', KEYS[3] .. ARGV[1]) == 1 then
    local payloads = redis.call('HMGET', KEYS[4], unpack(ARGV, 4))
    redis.call('ZREM', KEYS[2], unpack(ARGV, 4))
    redis.call('HDEL', KEYS[4], unpack(ARGV, 4))
    for place = 4, #ARGV do
        redis.call('XADD', KEYS[5], '*', 'id', ARGV[place], 'payload', payloads[place - 3])
    end
end
local ready = redis.call('ZPOPMIN', KEYS[1], ARGV[3])
if #ready == 0 then
    return {}
end
local ids, leased = {}, {}
for place = 1, #ready, 2 do
    ids[#ids + 1] = ready[place]
    leased[#leased + 1] = expires
    leased[#leased + 1] = ready[place]
end
redis.call('SET', KEYS[3] .. ARGV[2], 1)
redis.call('ZADD', KEYS[2], unpack(leased))
return {ids, redis.call('HMGET', KEYS[4], unpack(ids))}
"""
KEYS = ("{raw}:ready", "{raw}:leased", "{raw}:token:", "{raw}:payloads", "{raw}:log")
PAYLOAD = msgspec.json.encode(raw.PAYLOAD)


def fill(url: str, count: int, batch: int = 10_000) -> None:
    with redis.Redis.from_url(url) as server:
        server.delete(*KEYS)
        for first in range(0, count, batch):
            ids = [str(uuid_utils.uuid7()) for _ in range(first, min(first + batch, count))]
            pipe = server.pipeline(transaction=False)
            pipe.hset(KEYS[3], mapping=dict.fromkeys(ids, PAYLOAD))
            pipe.zadd(KEYS[0], {event_id: first + number for number, event_id in enumerate(ids)})
            pipe.execute()


def drain(server: redis.Redis) -> int:
    """Complete what was claimed and claim the next 100 in one script, until nothing is left. Returns how many."""
    step: Any = server.register_script(STEP)
    count, token, held = 0, "", list[bytes]()
    while True:
        before, token = token, os.urandom(16).hex()
        claimed = step(keys=KEYS, args=[before, token, CLAIM, *held])
        if not claimed:
            return count
        held = claimed[0]
        count += len(held)
