"""``durabus db``: the tables of a store, and backups of SQLite files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import (
    DEFAULTS,
    BackUp,
    Common,
    SchemaStep,
    applied_steps,
    file_backup,
    opened_store,
    refuse_absent_file,
    schema_steps,
    store_url,
    warning_of_copy,
)
from durabus.cli.output import console, iso, print_json, progress_bars, say, table

db = App(name="db", help="Tables of the store: migrate, status, verify, sql. SQLite files: backup, restore.")

Overwrite = Annotated[bool, Parameter(help="Replace an existing file.", negative="", show_default=False)]


@db.command
async def migrate(*, common: Common = DEFAULTS) -> None:
    """Create the store, or update its tables. Safe to repeat.

    Example: durabus db migrate
    """
    url = store_url(common)
    try:
        before = {step.number for step in await applied_steps(url) if step.applied_ts is not None}
    except CommandFailed as failure:
        if failure.code is not Exit.STORE:
            raise
        before = set()
    async with opened_store(common, create=True) as store:
        await store.verify()
    steps = await applied_steps(url)
    new = [step.name for step in steps if step.number not in before]
    if common.json:
        print_json({"applied": new, "steps": _documents(steps)})
    else:
        print(f"applied {', '.join(new)}" if new else f"up to date: {steps[-1].name}")


@db.command
async def status(*, common: Common = DEFAULTS) -> int:
    """Show which schema steps are applied. Changes nothing. The exit code is 1 if a step is missing.

    Example: durabus db status
    """
    url = store_url(common)
    warning = warning_of_copy(url)
    steps = await applied_steps(url)
    missing = [step.name for step in steps if step.applied_ts is None]
    if common.json:
        print_json({"up_to_date": not missing, "steps": _documents(steps), "warning": warning or None})
    else:
        made = table("step", "applied")
        for step in steps:
            made.add_row(step.name, iso(step.applied_ts) or "[red]missing: `durabus db migrate` applies it[/]")
        console().print(made)
        if warning:
            say(warning)
    return Exit.FAILED if missing else Exit.OK


@db.command
async def verify(*, common: Common = DEFAULTS) -> None:
    """Check that every table and index is exactly as durabus created it.

    Example: durabus db verify
    """
    url = store_url(common)
    refuse_absent_file(url)
    if any(step.applied_ts is None for step in await applied_steps(url)):
        # The URL is not shown: it may hold a password.
        raise CommandFailed(
            "the schema is not up to date", "steps are missing", "run `durabus db migrate` first", code=Exit.STORE
        )
    async with opened_store(common) as store:
        await store.verify()
    if common.json:
        print_json({"ok": True})
    else:
        print("the schema is correct")


@db.command
def sql(
    *,
    down: Annotated[
        bool, Parameter(help="Print the SQL that drops them instead.", negative="", show_default=False)
    ] = False,
    common: Common = DEFAULTS,
) -> None:
    """Print the SQL that creates the tables, so that you can apply it by hand.

    Example: durabus db sql
    """
    steps = schema_steps(store_url(common))
    if down:
        steps.reverse()
    if common.json:
        print_json([{"number": one.number, "name": one.name, "sql": one.down if down else one.up} for one in steps])
        return
    for step in steps:
        print(f"-- {step.name}{' (down)' if down else ''}\n{(step.down if down else step.up).strip()}\n")


@db.command
def backup(
    file: Annotated[Path, Parameter(help="The backup file to write.")],
    *,
    overwrite: Overwrite = False,
    common: Common = DEFAULTS,
) -> None:
    """Copy a SQLite store into one file while processes use it, and check the copy.

    Example: durabus db backup bus.backup.db
    """
    refuse_absent_file(store_url(common))
    size = _move_pages("backup", file, overwrite=overwrite, common=common)
    if common.json:
        print_json({"file": str(file), "bytes": size})
    else:
        print(f"{file}: {size:,} bytes, checked")


@db.command
def restore(
    file: Annotated[Path, Parameter(help="A file that `durabus db backup` wrote.")],
    *,
    overwrite: Overwrite = False,
    common: Common = DEFAULTS,
) -> None:
    """Replace a SQLite store that no process has open by a backup. Events handled since then are handled again.

    Example: durabus db restore bus.backup.db --store sqlite:///restored.db
    """
    size = _move_pages("restore", file, overwrite=overwrite, common=common)
    if common.json:
        print_json({"file": str(file), "bytes": size})
    else:
        print(f"restored {size:,} bytes from {file}, checked")


def _move_pages(way: BackUp, file: Path, *, overwrite: bool, common: Common) -> int:
    with progress_bars("pages", quiet=common.json) as bars, bars.step(way, None) as moved:
        return file_backup(store_url(common), way, file, overwrite=overwrite, moved=moved)


def _documents(steps: list[SchemaStep]) -> list[dict[str, object]]:
    return [{"number": step.number, "name": step.name, "applied_at": iso(step.applied_ts)} for step in steps]
