"""API tokens: 256 random bits each. One small file beside the server keeps only their hashes.

A file works with every store, can be read-only for the server, and keeps the keys apart from the data they protect.
The server checks the file on every request, so it refuses a revoked token at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from durabus.clock import Clock, SystemClock
from durabus.errors import ConfigurationError
from durabus.http.auth.access import Principal, Scope
from durabus.model.limits import check_name, check_tags

PREFIX = "durabus"
SECRET_BYTES = 32
ID_BYTES = 6
ABSENT_HASH = "0" * 64


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What the file records about a token: everything except its secret."""

    id: str
    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    tags: tuple[str, ...] = ()
    buses: tuple[str, ...] = ()
    created_ts: float
    expires_ts: float | None = None
    revoked_ts: float | None = None

    def valid_at(self, now: float) -> bool:
        """Whether the token is neither revoked nor expired."""
        return self.revoked_ts is None and (self.expires_ts is None or now < self.expires_ts)

    @property
    def principal(self) -> Principal:
        """The sender that this token identifies."""
        return Principal(
            name=self.name, scopes=frozenset(self.scopes), tags=frozenset(self.tags), buses=frozenset(self.buses)
        )


class _Contents(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...] = ()


class TokenFile:
    """The tokens of a server. Creating or revoking one takes effect at once on every server that reads the file."""

    def __init__(self, path: Path | str, *, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self._clock = clock or SystemClock()
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, tuple[Token, Principal]] = {}

    def create(
        self,
        name: str,
        scopes: Iterable[Scope],
        *,
        tags: Iterable[str] = (),
        buses: Iterable[str] = (),
        expires_after: float | None = None,
    ) -> tuple[Token, str]:
        """Create a token. Returns it and its text, which is stored nowhere and cannot be shown again."""
        check_name(name, "token name")
        wanted = tuple(dict.fromkeys(scopes))
        if not wanted:
            raise ConfigurationError(f"token {name!r} has no scope: choose from {', '.join(Scope)}")
        now = self._clock.now()
        id_, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        token = Token(
            id=id_,
            name=name,
            sha256=_hash(secret),
            scopes=wanted,
            tags=check_tags(tags),
            buses=tuple(check_name(bus, "bus") for bus in buses),
            created_ts=now,
            expires_ts=None if expires_after is None else now + expires_after,
        )
        with self._changing() as tokens:
            tokens.append(token)
        return token, f"{PREFIX}_{id_}_{secret}"

    def tokens(self) -> tuple[Token, ...]:
        """All tokens, oldest first, including expired and revoked ones."""
        return self._read()

    def revoke(self, id_: str) -> Token | None:
        """Revoke a token now. Returns None if no token has this id. A repeat keeps the first time of revocation."""
        with self._changing() as tokens:
            for number, token in enumerate(tokens):
                if token.id == id_:
                    revoked = token.revoked_ts or self._clock.now()
                    tokens[number] = msgspec.structs.replace(token, revoked_ts=revoked)
                    return tokens[number]
        return None

    def holder(self, text: str) -> Principal | None:
        """The principal of the token ``text``; None if it is unknown, expired or revoked.

        Raises ``ConfigurationError`` if the file cannot be read.
        """
        self._refresh()
        prefix, _, rest = text.partition("_")
        id_, _, secret = rest.partition("_")
        known = self._tokens.get(id_)
        expected = ABSENT_HASH if known is None else known[0].sha256
        # An unknown id is compared too, so that the time taken does not reveal which ids exist.
        if not hmac.compare_digest(_hash(secret), expected) or known is None or prefix != PREFIX:
            return None
        return known[1] if known[0].valid_at(self._clock.now()) else None

    def check(self) -> None:
        """Raise ``ConfigurationError`` if the file cannot be read."""
        self._refresh()

    def _refresh(self) -> None:
        try:
            found = self.path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen != self._seen:
            self._tokens = {token.id: (token, token.principal) for token in self._read()}
            self._seen = seen

    def _read(self) -> tuple[Token, ...]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_Contents).tokens
        except (OSError, msgspec.DecodeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"tokens file {self.path} cannot be read ({error}): every request is refused; create one with "
            "`durabus tokens create`"
        )

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """Yields the tokens to change, for one process at a time. Readers see the old file or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = list(self._read()) if self.path.exists() else []
            yield tokens
            self._replace(msgspec.json.format(msgspec.json.encode(_Contents(tuple(tokens))), indent=2))
        finally:
            os.close(lock)

    def _replace(self, contents: bytes) -> None:
        # mkstemp makes the file readable by its owner only.
        handle, made = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(contents)
                file.flush()
                os.fsync(file.fileno())
            Path(made).replace(self.path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise


def _hash(secret: str) -> str:
    """Hash without salt, and fast: 256 random bits cannot be guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()
