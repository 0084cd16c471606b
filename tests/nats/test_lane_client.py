"""The quick way of messages with headers gives what nats-py's own way gives."""

from uuid import uuid4

import pytest
from nats.aio.client import Client

from durabus import new_event, open_store
from durabus.backends.nats.lane_client import LaneClient, Outgoing


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


async def test_messages_arrive_in_order_with_their_headers(nats_url: str) -> None:
    client, subject = LaneClient(), f"t{uuid4().hex}"
    await client.connect(nats_url)
    got = await client.subscribe(subject)
    sent = [Outgoing(subject, {"Number": str(n), "Text": "gr\u00fc\u00df"}, b"x" * n) for n in range(500)]
    sent.append(Outgoing(subject, {"Number": "a\r\nb\nc", "Text": "d\re"}, b""))
    await client.publish_all(sent)
    for message in sent[:-1]:
        found = await got.next_msg(timeout=20)
        assert (found.headers, found.data) == (message.headers, message.body)
    assert (await got.next_msg(timeout=20)).headers == {"Number": "a  b c", "Text": "d e"}
    await client.close()


async def test_a_closed_client_refuses(nats_url: str) -> None:
    client = LaneClient()
    await client.connect(nats_url)
    await client.close()
    with pytest.raises(Exception, match="connection closed"):
        await client.publish_all([Outgoing("t", {}, b"")])


async def test_metadata_with_line_breaks_breaks_no_message(nats_url: str) -> None:
    store = await open_store(f"{nats_url}?prefix={uuid4().hex}")
    new = [new_event("t", {"n": n}, metadata={"traceparent": f"{n}\r\nX: y\n"}) for n in range(3)]
    stored = await store.add_events(new)
    assert [event.metadata_json for event in stored] == [one.metadata_json for one in new]
    await store.close()
