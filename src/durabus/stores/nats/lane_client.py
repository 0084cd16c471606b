"""nats-py's client with a fast path for the messages of the lanes.

nats-py checks every character of every header name and passes each message from task to task. Every switch of tasks
also lets another thread run. This took most of the time of a publish or a read. The headers of durabus are known to be
valid, so this client writes a batch in one piece, and handles a message while it reads it.
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
    """A message to send."""

    subject: str
    headers: Mapping[str, str]
    body: bytes


class LaneClient(Client):
    """A ``Client`` with a fast path.

    If a later nats-py does not call the methods that are overridden here, its own slower path is used.
    """

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, Callable[[Msg], Awaitable[None]]] = {}
        self._inbox = ""
        self._asked = 0

    async def ask(self, message: NatsOutgoing, *, after: Iterable[NatsOutgoing] = (), within: float) -> Msg:
        """Send ``after`` and then ``message`` in one piece, and return the reply to ``message``.

        Subjects and names of headers must be valid.
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
        """Fail all requests that wait for a reply, because the connection is lost."""
        for answer in self._resp_map.values():
            if not answer.done():
                answer.set_exception(ConnectionReconnectingError())

    async def listen(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Subscribe. The reading task calls ``take``, so ``take`` must be quick and raise nothing."""
        subscription = await self.subscribe(subject, cb=take, pending_msgs_limit=1_000_000, pending_bytes_limit=1 << 30)
        self._takers[subscription._id] = take  # noqa: SLF001
        return subscription

    async def end_listening(self, subscription: Subscription) -> None:
        """End a subscription of ``listen``."""
        self._takers.pop(subscription._id, None)  # noqa: SLF001
        if not self.is_closed:
            await subscription.unsubscribe()

    @property
    def has_more(self) -> bool:
        """Whether bytes were read that are not handled yet. They may be only a part of a message."""
        return bool(self._ps.buf)

    async def _write(self, data: bytes) -> None:
        if self.is_closed:
            raise ConnectionClosedError
        if not self.is_connected or self._transport is None:
            raise ConnectionReconnectingError
        if self._pending:  # the parent's own task has commands to send first
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
        """Parse headers as the parent does, with fewer steps."""
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
