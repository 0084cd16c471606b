"""The Java that Spark will run on, found before Spark fails without it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from durabus.errors import PipelineError

OLDEST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_java() -> int:
    """The major version of the Java that Spark takes; refuses a missing or too old one."""
    java = _java()
    if java is None:
        raise PipelineError(
            f"no Java found: Spark needs Java {OLDEST} or newer; install one (Debian: openjdk-17-jre-headless), "
            "or set JAVA_HOME"
        )
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError as error:
        raise PipelineError(
            f"{java} cannot be run ({error.strerror}): set JAVA_HOME to Java {OLDEST} or newer"
        ) from error
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        raise PipelineError(f"{java} does not tell its version: set JAVA_HOME to Java {OLDEST} or newer")
    major = int(found[1])
    if major < OLDEST:
        raise PipelineError(f"{java} is Java {major}: Spark needs {OLDEST} or newer; set JAVA_HOME to one")
    return major


def _java() -> str | None:
    """As Spark's own launcher looks for it."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return str(path) if path.exists() else None
    return shutil.which("java")
