"""The folder of one server: temporary and removed with it, or given and kept, and never shared by two."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

import msgspec

from durabus.errors import ServerError

CARD = "durabus-server.json"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a kept folder remembers, so that its server comes back under the same URL."""

    kind: str
    ports: tuple[int, ...] = ()
    password: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(18))


class Folder:
    """Opened for one server at a time."""

    def __init__(self, kind: str, given: Path | None) -> None:
        self._temporary = given is None
        self.path = Path(tempfile.mkdtemp(prefix=f"durabus-{kind}-")) if given is None else given.absolute()
        self._lock: int | None = None
        try:
            self.card = self._open(kind)
        except BaseException:
            self.close()
            raise

    def _open(self, kind: str) -> Card:
        card = self.path / CARD
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not card.exists() and any(self.path.iterdir()):
                raise ServerError(f"{self.path} is not empty and no server of durabus: name a new or an empty folder")
            self._lock = os.open(card, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerError(f"{self.path} is in use by another server: stop it, or name another folder") from None
        except OSError as error:
            raise ServerError(f"cannot use the folder {self.path}: {error.strerror or error}") from error
        return self._read(kind)

    def _read(self, kind: str) -> Card:
        text = (self.path / CARD).read_bytes()
        if not text:
            return Card(kind=kind)
        try:
            card = msgspec.json.decode(text, type=Card)
        except msgspec.MsgspecError as error:
            raise ServerError(f"{self.path / CARD} cannot be read ({error}): remove the folder") from error
        if card.kind != kind:
            raise ServerError(f"{self.path} holds a {card.kind} server, not {kind}: name another folder")
        return card

    def remember(self, card: Card) -> None:
        """Keep what the next start needs. Written in place, because the lock is on this very file."""
        self.card = card
        if self._lock is not None:
            os.pwrite(self._lock, msgspec.json.encode(card), 0)
            os.ftruncate(self._lock, len(msgspec.json.encode(card)))

    def close(self) -> None:
        """Give it up; a temporary one is removed."""
        if self._temporary:
            shutil.rmtree(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
