"""One run at a time on a lake."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from durabus.errors import PipelineError
from durabus.model.claim import default_worker_id

NAME = "_lock"
_LOOK_EVERY = 0.1
"""Seconds. A lock can be waited for, but then nothing can say for how long."""


@contextmanager
def lake_lock(path: str, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lake in this folder; the lock ends with the process, however it ends.

    Raises ``PipelineError`` if another process has it for longer than ``wait`` seconds.

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
        if not _taken(file, wait):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PipelineError(f"the lake {path} is locked by another run ({holder}): wait for it, or stop it")
        try:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), default_worker_id().encode())
        except OSError as error:
            raise PipelineError(f"the lake {path} cannot be written: {error.strerror or error}") from error
        yield


def _taken(file: TextIO, wait: float) -> bool:
    until = time.monotonic() + wait  # clock: how long this process waits
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:  # clock: how long this process waits
                return False
            time.sleep(_LOOK_EVERY)
        else:
            return True
