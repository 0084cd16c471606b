"""Clients of the HTTP API: ``Client`` for async code and ``SyncClient`` for other code, with the same methods.

::

    async with Client("http://127.0.0.1:8484") as client:
        async for job in client.jobs(tags=["email"]):
            async with job:
                await send(job.payload)
"""

from durabus.client.asynchronous import Client, Job
from durabus.client.synchronous import SyncClient, SyncJob

__all__ = ["Client", "Job", "SyncClient", "SyncJob"]
