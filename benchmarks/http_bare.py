"""``python -m benchmarks.http_bare URL``: the same framework and server, endpoints that do the store call alone."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any

import msgspec
import uvicorn
from litestar import Litestar, Request, get, post
from litestar.params import QueryParameter

from durabus import new_event, open_store
from durabus.http.serving import listen
from durabus.model.claim import ClaimRef, ClaimRequest, new_token
from durabus.model.settlement import Complete


class New(msgspec.Struct):
    title: str
    tags: str
    payload: Any


class Batch(msgspec.Struct):
    events: list[New]


class Created(msgspec.Struct):
    id: int


class Job(msgspec.Struct):
    id: int
    token: str
    fence: int


class Done(msgspec.Struct):
    status: str


async def main(url: str) -> None:
    store = await open_store(url)

    @post("/events")
    async def create(request: Request[Any, Any, Any]) -> Created:
        given = msgspec.json.decode(await request.body(), type=New)
        new = new_event(given.title, given.payload, tags=given.tags.split(","))
        return Created((await store.add_events([new]))[0].id)

    @post("/events/batch")
    async def create_batch(request: Request[Any, Any, Any]) -> list[Created]:
        given = msgspec.json.decode(await request.body(), type=Batch).events
        new = [new_event(one.title, one.payload, tags=one.tags.split(",")) for one in given]
        return [Created(event.id) for event in await store.add_events(new)]

    @get("/events/subscribe")
    async def subscribe(tags: Annotated[str, QueryParameter()], worker_id: Annotated[str, QueryParameter()]) -> Job:
        wanted = ClaimRequest(bus="default", worker_id=worker_id, token=new_token(), tags=tuple(tags.split(",")))
        claim = (await store.claim_next_events(wanted))[0]
        return Job(claim.event.id, claim.token, claim.event.fence)

    @post("/complete", status_code=200)
    async def complete(request: Request[Any, Any, Any]) -> Done:
        given = msgspec.json.decode(await request.body(), type=Job)
        ref = ClaimRef(given.id, given.token, given.fence)
        (outcome,) = (await store.settle_events([Complete(ref)])).outcomes
        return Done(type(outcome).__name__)

    listening = listen("127.0.0.1", 0)
    app = Litestar([create, create_batch, subscribe, complete], openapi_config=None, logging_config=None)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", proxy_headers=False)
    port = listening.getsockname()[1]
    os.write(1, msgspec.json.encode({"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}) + b"\n")
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
