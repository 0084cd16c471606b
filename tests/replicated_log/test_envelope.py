"""A record is known by its sender and number, and what is no record is seen."""

import pytest

from durabus.stores.replicated_log.records import DamagedRecordError, NoEnvelopeError, label, seal, unseal


def sealed(body: bytes = b"body", *, largest: int = 10_000, number: int = 7) -> list[bytes]:
    return list(seal(body, session="s1", number=number, low=3, public_seen=11, largest=largest))


def test_what_was_sealed_is_read_back() -> None:
    (record,) = sealed()
    envelope = unseal(record, label(record))
    assert (envelope.session, envelope.number, envelope.low, envelope.public_seen) == ("s1", 7, 3, 11)
    assert (envelope.piece, envelope.pieces, envelope.body) == (0, 1, b"body")


def test_a_body_that_the_broker_does_not_take_goes_in_pieces() -> None:
    body = bytes(range(256)) * 20
    records = sealed(body, largest=1000)
    assert len(records) > 5
    assert all(len(record) <= 1000 for record in records)
    pieces = [unseal(record, label(record)) for record in records]
    assert b"".join(piece.body for piece in pieces) == body
    assert [piece.piece for piece in pieces] == list(range(len(records)))


def test_an_empty_body_is_a_record() -> None:
    assert len(sealed(b"")) == 1


@pytest.mark.parametrize("where", range(0, 40, 3))
def test_a_changed_byte_is_seen(where: int) -> None:
    (record,) = sealed()
    damaged = bytearray(record)
    damaged[where % len(record)] ^= 0x55
    with pytest.raises(DamagedRecordError, match="was written with the checksum"):
        unseal(bytes(damaged), label(record))


def test_a_record_that_lost_its_label_is_damaged_and_not_foreign() -> None:
    (record,) = sealed()
    with pytest.raises(DamagedRecordError, match="lost its header durabus-crc"):
        unseal(record, {})


@pytest.mark.parametrize("wrong", [b"hello", b"\x98\x03\xa1s\x00\x00\x00\x00\x01\xc4\x00"])
def test_what_is_whole_but_makes_no_sense_is_damaged(wrong: bytes) -> None:
    with pytest.raises(DamagedRecordError):
        unseal(wrong, label(wrong))


@pytest.mark.parametrize("foreign", [b"", b"{}", b"hello", b"\x00" * 50, b"\x99\x01\x02", "ünïcödé".encode()])
def test_what_others_wrote_is_seen(foreign: bytes) -> None:
    with pytest.raises(NoEnvelopeError):
        unseal(foreign, {})
