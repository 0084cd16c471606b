"""An EventManager runs every handler of an event; only those that failed run again."""

import asyncio
import logging

from durabus import Event, EventManager, EventQueue, RetryPolicy, TransientError, open_store


class MailHandler:
    """A handler as an object: the recommended way."""

    id = "mail"
    event_type = "order.placed"

    def __init__(self) -> None:
        self.calls = 0
        self.sent = asyncio.Event()

    async def handle(self, event: Event) -> None:
        self.calls += 1
        if self.calls == 1:
            raise TransientError("mail server is restarting")
        print(f"mail for order {event.payload['order']} sent on call {self.calls}")
        self.sent.set()


def audit(event: Event) -> None:
    """A plain function runs in a thread."""
    print(f"audit: {event.type}")


async def main() -> None:
    store = await open_store("memory://")
    queue = EventQueue(store)
    manager = EventManager(queue, poll_delay=0.05, retry=RetryPolicy(max_retries=10, base_delay=0.05))
    mail = MailHandler()
    manager.register(mail)
    manager.register("order.*", "audit", audit)

    event = await queue.publish("order.placed", {"order": 7})
    loop = asyncio.create_task(manager.run_process_loop())
    await mail.sent.wait()
    manager.stop()  # what runs is finished and written down
    await loop

    for entry in await store.read_event_log(event.id):
        print(f"{entry.action} (attempt {entry.attempt}){f': {entry.error}' if entry.error else ''}")
    print(f"handler states cleaned up: {await manager.cleanup_finalized_events()}")
    await store.close()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # every failed attempt is logged; here the audit trail shows it
    asyncio.run(main())
