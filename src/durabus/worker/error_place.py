"""Where an error was raised, as a person looks for it: in the code that is neither durabus nor a library."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import TracebackType

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def place_of(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame of the user's own code, else of the innermost one; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(error.filename)}:{error.lineno}"
    found = None
    step = error.__traceback__
    while step is not None:
        if found is None or _is_own(step) or not _is_own(found):
            found = step
        step = step.tb_next
    return None if found is None else f"{_short(found.tb_frame.f_code.co_filename)}:{found.tb_lineno}"


def _is_own(step: TracebackType) -> bool:
    file, module = step.tb_frame.f_code.co_filename, step.tb_frame.f_globals.get("__name__", "")
    return not (file.startswith(("<frozen ", *LIBRARIES)) or module.partition(".")[0] == "durabus")


def _short(file: str) -> str:
    """As seen from the present folder."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file
