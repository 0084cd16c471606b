"""The ceiling on Redis: complete a batch and claim the next one in one script, on the same driver's connection.

It has no deduplication, no log of publishing and claiming, no retries, no priorities and no hints.
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
now = tonumber(now[1]) + tonumber(now[2]) / 1e6
for place = 4, #ARGV do
    local key = KEYS[3] .. ARGV[place]
    local event = redis.call('HMGET', key, 'token', 'payload', 'fence')
    if event[1] == ARGV[1] then
        redis.call('DEL', key)
        redis.call('ZREM', KEYS[2], ARGV[place])
        redis.call('XADD', KEYS[4], '*', 'id', ARGV[place], 'fence', event[3], 'payload', event[2])
    end
end
local claimed = {}
local ready = redis.call('ZPOPMIN', KEYS[1], ARGV[3])
for place = 1, #ready, 2 do
    local id = ready[place]
    local key = KEYS[3] .. id
    local fence = redis.call('HINCRBY', key, 'fence', 1)
    redis.call('HSET', key, 'token', ARGV[2])
    redis.call('ZADD', KEYS[2], now + 30, id)
    claimed[#claimed + 1] = {id, fence, redis.call('HGET', key, 'payload')}
end
return claimed
"""
KEYS = ("{raw}:ready", "{raw}:leased", "{raw}:event:", "{raw}:log")
PAYLOAD = msgspec.json.encode(raw.PAYLOAD)


def fill(url: str, count: int, batch: int = 10_000) -> None:
    with redis.Redis.from_url(url) as server:
        server.delete(*KEYS)
        for first in range(0, count, batch):
            pipe = server.pipeline(transaction=False)
            for number in range(first, min(first + batch, count)):
                event_id = str(uuid_utils.uuid7())
                pipe.hset(f"{KEYS[2]}{event_id}", mapping={"type": raw.EVENT_TYPE, "payload": PAYLOAD, "fence": 0})
                pipe.zadd(KEYS[0], {event_id: number})
            pipe.execute()


def drain(server: redis.Redis) -> int:
    """Complete what was claimed and claim the next 100 in one script, until nothing is left. Answers how many."""
    step: Any = server.register_script(STEP)
    count, token, held = 0, "", list[bytes]()
    while True:
        before, token = token, os.urandom(16).hex()
        claimed = step(keys=KEYS, args=[before, token, CLAIM, *held])
        held = [row[0] for row in claimed]
        count += len(claimed)
        if not claimed:
            return count
