"""Disks that fail under a process. The kernel itself refuses the calls; this needs no privileges.

``fill`` and ``free`` set how large a file another process may make: a write beyond that fails, as on a full disk or
over a quota. ``break_sync`` makes every sync of this process fail, as a disk that is about to die does, until its end.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
from collections.abc import Iterable
from pathlib import Path

ROOM = 2**18
"""Bytes that are left on a full disk: a process of the lab must go on writing its history."""

_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_CALLS = {"x86_64": (317, 0xC000003E, (74, 75)), "aarch64": (277, 0xC00000B7, (82, 83))}
"""For each machine: the number of ``seccomp``, its name in a filter, the numbers of ``fsync`` and ``fdatasync``."""
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _MACHINE = 0, 4
"""Where a filter finds the call and the machine."""
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def fill(pids: Iterable[int], limit: int) -> None:
    """Keep these processes from writing beyond ``limit`` bytes of any file."""
    _limit(pids, limit)


def free(pids: Iterable[int]) -> None:
    """Let those of these processes write again that still run."""
    _limit(pids, resource.RLIM_INFINITY)


def _limit(pids: Iterable[int], limit: int) -> None:
    for pid in pids:
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        except ProcessLookupError:
            continue  # it was killed, or ended because of its disk


def children_of(pid: int) -> list[int]:
    """Return the processes that ``pid`` has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def break_sync() -> None:
    """Make ``fsync`` and ``fdatasync`` fail with EIO in all threads of this process. It cannot be undone."""
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, f"no system calls are known here of {platform.machine()}: add them to {__name__}")
    seccomp, machine, (fsync, fdatasync) = _CALLS[platform.machine()]
    lines = (
        _Instruction(_LOAD, 0, 0, _MACHINE),
        _Instruction(_JUMP_IF_EQUAL, 0, 4, machine),
        _Instruction(_LOAD, 0, 0, _NUMBER),
        _Instruction(_JUMP_IF_EQUAL, 1, 0, fsync),
        _Instruction(_JUMP_IF_EQUAL, 0, 1, fdatasync),
        _Instruction(_RETURN, 0, 0, _FAIL | errno.EIO),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    program = _Program(len(lines), (_Instruction * len(lines))(*lines))
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(
        seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program)
    )
    if done:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
