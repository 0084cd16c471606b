"""The lock of a lake: one run, rebuild, proof or compaction at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from durabus.errors import LockHeld, PipelineError
from durabus.model.claim import DEFAULT_LEASE, default_worker_id
from durabus.pipeline.lake import is_url
from durabus.pipeline.store_session import StoreSession

KILLED_WITHIN = DEFAULT_LEASE + 5.0
"""Seconds after which a killed run holds no lock of the store any more."""
_LOCK_FILE = "_lock"
_LOOK_EVERY = 0.1
"""Seconds between two tries. A blocking lock call would have no timeout."""


@contextmanager
def alone(path: str, session: StoreSession | None, *, wait: float = 0.0) -> Iterator[Future[None] | None]:
    """Keep other writers out of a lake until the block ends. Raises ``PipelineError`` after ``wait`` seconds.

    A bucket has no locks, and two commits may overwrite each other there. So a writer of a lake in a bucket holds a
    lock of the store. Then this yields a future that fails if the lock is lost meanwhile.
    """
    if not is_url(path):
        with lake_lock(path, wait=wait):
            yield None
        return
    if session is None:
        raise PipelineError(f"the lake {path} is in a bucket: name its store, whose lock keeps two writers apart")
    key = f"pipeline:{hashlib.sha256(path.encode()).hexdigest()}"
    try:
        with session.hold(key, wait=max(wait, KILLED_WITHIN)) as keeping:
            yield keeping
    except LockHeld as error:
        raise PipelineError(f"another run writes the lake {path}: wait for it, or stop it") from error


@contextmanager
def lake_lock(path: str, *, wait: float = 0.0) -> Iterator[None]:
    """Lock the lake in this folder. The lock ends with the process, even if it is killed.

    Raises ``PipelineError`` if another process holds it for longer than ``wait`` seconds.
    """
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
        file = (place / _LOCK_FILE).open("a+", encoding="utf-8")
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
