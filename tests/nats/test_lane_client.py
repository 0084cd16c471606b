"""The quick client sends and receives messages with headers as nats-py does."""

import asyncio
from uuid import uuid4

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, NoRespondersError

from durabus import new_event, open_store
from durabus.stores.nats.lane_client import LaneClient, NatsOutgoing


async def arrived(client: Client) -> None:
    """Wait until the server has all messages: the PING of nats-py's flush can overtake messages in its queue."""
    await client.flush()
    await client.flush()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n",
        b"Name: value\r\nOther:value\r\nEmpty:\r\n\r\n",
        b"Name: a: b : c \r\nName: again\r\n",
        "Name: gr\u00fc\u00df\r\n".encode(),
        b"Name: \xff\r\n",
        b"no colon\r\nTwo words: x\r\nN\xc3\xa4me: x\r\nName: kept\r\n",
    ],
)
def test_headers_are_read_as_nats_py_reads_them(raw: bytes) -> None:
    assert LaneClient._parse_header_lines(raw) == Client._parse_header_lines(raw)


async def test_messages_arrive_in_order_with_their_headers_and_the_last_gets_a_reply(nats_url: str) -> None:
    client, plain, subject = LaneClient(), Client(), f"t{uuid4().hex}"
    await client.connect(nats_url)
    await plain.connect(nats_url)
    got: list[tuple[dict[str, str] | None, bytes]] = []

    async def answer(message: Msg) -> None:
        got.append((message.headers, message.data))
        if message.reply:
            await message.respond(b"%d came" % len(got))

    await plain.subscribe(subject, cb=answer)
    await arrived(plain)
    sent = [NatsOutgoing(subject, {"Number": str(n), "Text": "gr\u00fc\u00df"}, b"x" * n) for n in range(500)]
    last = NatsOutgoing(subject, {"Number": "a\r\nb\nc", "Text": "d\re"}, b"")
    assert (await client.ask(last, after=sent, within=20)).data == b"501 came"
    assert got[:-1] == [(message.headers, message.body) for message in sent]
    assert got[-1] == ({"Number": "a  b c", "Text": "d e"}, b"")
    replies = await asyncio.gather(*(client.ask(one, within=20) for one in sent[:50]))
    assert [reply.data for reply in replies] == [b"%d came" % n for n in range(502, 552)]
    await plain.drain()  # the server knows of a drain at once; it learns of a closed connection later
    with pytest.raises(NoRespondersError):
        await client.ask(last, within=20)
    await client.close()


async def test_a_client_waits_for_a_missing_reply_no_longer_than_its_timeout(nats_url: str) -> None:
    client, subject = LaneClient(), f"t{uuid4().hex}"
    await client.connect(nats_url)
    silent = await client.subscribe(subject)
    with pytest.raises(TimeoutError):
        await client.ask(NatsOutgoing(subject, {}, b""), within=0.05)
    assert (await silent.next_msg(timeout=20)).reply
    await client.close()


async def test_a_listener_gets_messages_until_it_ends(nats_url: str) -> None:
    client, subject = LaneClient(), f"t{uuid4().hex}"
    await client.connect(nats_url)
    got: list[bytes] = []

    async def take(message: Msg) -> None:
        got.append(message.data)

    listening = await client.listen(subject, take)
    for n in range(3):
        await client.publish(subject, b"%d" % n)
    await arrived(client)
    assert got == [b"0", b"1", b"2"]
    await client.end_listening(listening)
    await client.publish(subject, b"3")
    await arrived(client)
    assert len(got) == 3
    await client.close()
    await client.end_listening(listening)


async def test_a_closed_client_refuses(nats_url: str) -> None:
    client = LaneClient()
    await client.connect(nats_url)
    await client.ask(NatsOutgoing("$JS.API.INFO", {}, b""), within=20)
    await client.close()
    with pytest.raises(ConnectionClosedError):
        await client.ask(NatsOutgoing("t", {}, b""), within=20)


async def test_metadata_with_line_breaks_breaks_no_message(nats_url: str) -> None:
    store = await open_store(f"{nats_url}?prefix={uuid4().hex}")
    new = [new_event("t", {"n": n}, metadata={"traceparent": f"{n}\r\nX: y\n"}) for n in range(3)]
    stored = await store.add_events(new)
    assert [event.metadata_json for event in stored] == [one.metadata_json for one in new]
    await store.close()
