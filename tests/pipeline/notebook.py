"""``examples/pipeline_notebook.py``, run as a notebook runs it: on the session that is there."""

import runpy
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from durabus.stores.sqlite.store import SQLiteStore

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline_notebook.py"


@dataclass(frozen=True)
class Notebook:
    """What the notebook printed, and the values of its names."""

    printed: list[str]
    names: dict[str, Any]
    opened: int
    """How often the process of the notebook opened the store."""


def run_notebook(folder: Path) -> Notebook:
    """Run the notebook with its store and its lake in this folder."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setattr("tempfile.tempdir", str(folder))
        open_sqlite, opened = SQLiteStore.open, []

        async def counted(store: SQLiteStore) -> None:
            opened.append(store)
            await open_sqlite(store)

        patch.setattr(SQLiteStore, "open", counted)
        with ThreadPoolExecutor(1) as thread:  # it has no event loop around it
            names = thread.submit(runpy.run_path, str(EXAMPLE), run_name="__main__").result()
    return Notebook(out.getvalue().splitlines(), names, len(opened))
