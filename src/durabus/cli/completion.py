"""``durabus completion``: prints the script with which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from durabus.cli.options import JsonOption
from durabus.cli.output import print_json

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell, Parameter(name="SHELL", help="The shell.")],
    /,
    *,
    json: JsonOption = False,
) -> None:
    """Print the completion script for a shell. To use it in this bash session: eval "$(durabus completion bash)".

    Example: durabus completion bash
    """
    from durabus.cli.app import app

    script = app.generate_completion(prog_name="durabus", shell=shell)
    if json:
        print_json({"shell": shell, "script": script})
    else:
        print(script)
