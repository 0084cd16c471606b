"""Numbered migrations, and the errors for a schema that they did not make. Each store runs the steps itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib.resources import files

import msgspec

from durabus.errors import SchemaError
from durabus.stores.sql.rows import Row

_NAME = re.compile(r"(\d{4})_\w+\.sql")
_SHOWN = 2000
"""Number of characters of a changed object that are shown."""


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One migration: the step and its reversal."""

    number: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        """The checksum of the step alone: its reversal may change later."""
        return hashlib.sha256(self.up.encode()).hexdigest()


@cache
def read_migrations(package: str) -> tuple[Migration, ...]:
    """Return all steps in ``package``'s folder ``migrations``, in order."""
    folder = files(package).joinpath("migrations")
    steps = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number = _NAME.fullmatch(file.name)
        if number:
            name = file.name.removesuffix(".sql")
            down = folder.joinpath(f"{name}.down.sql").read_text(encoding="utf-8")
            steps.append(Migration(number=int(number[1]), name=name, up=file.read_text(encoding="utf-8"), down=down))
    return tuple(steps)


def check_applied(rows: Iterable[Row], steps: Sequence[Migration], where: str, *, start_anew: str) -> list[int]:
    """Return the numbers of the applied steps, from rows (number, name, checksum, …).

    Raises for a schema of a newer durabus or with an edited step.
    """
    known = {step.number: step for step in steps}
    done: list[int] = []
    for number, name, checksum, *_ in rows:
        if number not in known:
            raise SchemaError(
                f"{where} was made by a newer durabus (its schema has {name}, this one knows {len(known)} steps): "
                "upgrade durabus in this process"
            )
        if checksum != known[number].checksum:
            raise SchemaError(f"{where}: step {name} was applied in another form than this durabus has: {start_anew}")
        done.append(number)
    return done


def refuse_missing(steps: Sequence[Migration], done: Collection[int], where: str, *, remedy: str) -> None:
    """Raise if a step is not applied."""
    missing = [step.name for step in steps if step.number not in done]
    if missing:
        raise SchemaError(f"{where}: the schema lacks {', '.join(missing)}: {remedy}")


def not_ours(where: str, error: Exception, step: Migration, *, remedy: str) -> SchemaError:
    """Return the error for a table that exists although no step has made it."""
    return SchemaError(
        f"{where}: {error}, but durabus did not make it ({step.name} is not applied): {remedy}, or rename that table"
    )


def damaged(where: str, package: str, kind: str, name: str, actual: str | None) -> SchemaError:
    """Return the error for an object that is missing (``actual`` is None) or has another definition."""
    remedy = f"restore a backup, or create it again as in {package.replace('.', '/')}/migrations"
    if actual is None:
        return SchemaError(f"{where}: {kind} {name} is missing: {remedy}")
    now = " ".join(actual.split())[:_SHOWN]
    return SchemaError(f"{where}: {kind} {name} is not the one durabus made, it is now `{now}`: {remedy}")
