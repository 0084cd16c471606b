"""One run at a time on a lake."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from durabus.errors import PipelineError
from durabus.model.claim import default_worker_id

NAME = "_lock"


@contextmanager
def lake_lock(path: str) -> Iterator[None]:
    """Hold the lake in this folder; the lock ends with the process, however it ends.

    A lake in a bucket has no such lock. Delta refuses the second of two writers there.
    """
    if "://" in path:
        yield
        return
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
        file = (place / NAME).open("a+", encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"the lake {path} cannot be written: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PipelineError(
                f"the lake {path} is locked by another run ({holder}): wait for it, or stop it"
            ) from error
        try:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), default_worker_id().encode())
        except OSError as error:
            raise PipelineError(f"the lake {path} cannot be written: {error.strerror or error}") from error
        yield
