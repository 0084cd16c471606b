"""nats-py's client with a quick way for the lanes' messages: most of a publish, or of a read, was spent on the way.

It builds headers one by one with a check of every name, on reading looks at every character of every name, and hands
each message from task to task, in and out. Every such turn of the loop lets another thread of the process have the
interpreter. Ours are known to be well-formed, so a batch is made and written in one piece; what comes is dealt with as
it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, ConnectionReconnectingError, NoRespondersError

END = "\r\n"
NOBODY = "503"
_BREAKS = str.maketrans("\r\n", "  ")


class NatsOutgoing(NamedTuple):
    """A message without a reply."""

    subject: str
    headers: Mapping[str, str]
    body: bytes


class LaneClient(Client):
    """Used as its parent is.

    If a later nats-py does not ask the methods of its own that are overridden here, its slower ways are used.
    """

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, Callable[[Msg], Awaitable[None]]] = {}
        self._inbox = ""
        self._asked = 0

    async def ask(self, message: NatsOutgoing, *, after: Iterable[NatsOutgoing] = (), within: float) -> Msg:
        """Send ``after`` and then ``message``, all in one piece, and wait for the reply to the last.

        Subjects and names of headers must be well-formed.
        """
        if not self._inbox:
            await self._init_request_sub()
        self._asked += 1
        token = f"q{self._asked}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._resp_map[token] = answer
        try:
            async with asyncio.timeout(within):
                await self._write(b"".join((*map(_command, after), _command(message, self._inbox + token))))
                reply = await answer
        finally:
            self._resp_map.pop(token, None)
        if reply.headers and reply.headers.get("Status") == NOBODY:
            raise NoRespondersError
        return reply

    def give_up(self) -> None:
        """The connection is gone, and every answer that was to come by it."""
        for answer in self._resp_map.values():
            if not answer.done():
                answer.set_exception(ConnectionReconnectingError())

    async def listen(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Subscribe; ``take`` is called from within the reading, so it must be quick and raise nothing."""
        subscription = await self.subscribe(subject, cb=take, pending_msgs_limit=1_000_000, pending_bytes_limit=1 << 30)
        self._takers[subscription._id] = take  # noqa: SLF001
        return subscription

    async def end_listening(self, subscription: Subscription) -> None:
        """Unsubscribe from what ``listen`` began."""
        self._takers.pop(subscription._id, None)  # noqa: SLF001
        if not self.is_closed:
            await subscription.unsubscribe()

    @property
    def has_more(self) -> bool:
        """Whether more was read than has been dealt with; it may be a part of a message only."""
        return bool(self._ps.buf)

    async def _write(self, data: bytes) -> None:
        if self.is_closed:
            raise ConnectionClosedError
        if not self.is_connected or self._transport is None:
            raise ConnectionReconnectingError
        if self._pending:  # it goes after what waits for the parent's own task
            await self._send_command(data)
            await self._flush_pending()
        else:
            self._transport.write(data)
            await self._transport.drain()  # type: ignore[no-untyped-call]

    async def _init_request_sub(self) -> None:
        await super()._init_request_sub()
        for sid, subscription in self._subs.items():
            if subscription._cb == self._request_sub_callback:  # noqa: SLF001
                self._takers[sid] = self._request_sub_callback
        self._inbox = bytes(self._resp_sub_prefix or b"").decode()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        take = self._takers.get(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        elif sid in self._subs:
            message = self._build_message(sid, subject, reply, data, await self._process_headers(headers))
            await take(message)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As the parent's, with fewer steps."""
        lines = (line.partition(":") for line in raw.decode(errors="replace").split(END))
        return {name: value.strip() for name, colon, value in lines if colon and name.isascii() and " " not in name}


def _command(message: NatsOutgoing, reply: str = "") -> bytes:
    text = "".join([f"{name}: {value}{END}" for name, value in message.headers.items()])
    if text.count("\n") != len(message.headers) or text.count("\r") != len(message.headers):
        text = "".join(f"{name}: {value.translate(_BREAKS)}{END}" for name, value in message.headers.items())
    head = f"NATS/1.0{END}{text}{END}".encode()
    size = len(head) + len(message.body)
    to = f"HPUB {message.subject} {reply} {len(head)} {size}{END}".encode()
    return b"%b%b%b\r\n" % (to, head, message.body)
