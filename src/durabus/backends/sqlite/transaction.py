"""What one write, or one read, sees: a cursor in an open transaction and the instant it happens at."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from durabus.backends.sqlite.rows import Row

Parameters = Mapping[str, Any] | Sequence[Any]

MARK = "\ufffd"
"""Stands for bytes that are no UTF-8."""


class Transaction:
    """Handed to every verb. Rows are always taken at once: a half-read cursor would hold the snapshot open."""

    __slots__ = ("connection", "cursor", "fruitful", "fruitless", "now", "woken")

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.connection = connection
        self.now = now
        self.cursor = connection.cursor()
        self.cursor.row_factory = None
        self.woken: set[str] = set()
        """Buses that have something new to claim once this commits."""
        self.fruitful: set[str] = set()
        """Buses that gave somebody something to do."""
        self.fruitless: set[str] = set()
        """Buses that had nothing for somebody, maybe only for that one."""

    def all(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Every row of the answer."""
        try:
            return self.cursor.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
            return self._all_damaged(sql, parameters)

    def one(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The only row, or None."""
        rows = self.all(sql, parameters)
        return rows[0] if rows else None

    def value(self, sql: str, parameters: Parameters = ()) -> Any:
        """The only column of the only row, or None."""
        rows = self.all(sql, parameters)
        return rows[0][0] if rows else None

    def run(self, sql: str, parameters: Parameters = ()) -> int:
        """How many rows the statement changed."""
        return self.cursor.execute(sql, parameters).rowcount

    def many(self, sql: str, rows: Sequence[Row]) -> int:
        """How many rows the statement changed in all."""
        return self.cursor.executemany(sql, rows).rowcount if rows else 0

    def _all_damaged(self, sql: str, parameters: Parameters) -> list[Row]:
        """Bytes on disk that are no text any more: shown with marks, so that the queue goes on."""
        usual = self.connection.text_factory
        self.connection.text_factory = _marked
        try:
            return self.cursor.execute(sql, parameters).fetchall()
        finally:
            self.connection.text_factory = usual


def _marked(data: bytes) -> str:
    """Text as it is. Damaged text begins with U+FFFD, so that it is no JSON: nobody works on half a payload."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        return text if text.startswith(MARK) else MARK + text
