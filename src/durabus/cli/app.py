"""The tree of commands. ``run`` turns the result of a command into an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from durabus import __version__
from durabus.cli.db import db
from durabus.cli.dev import demo, dev
from durabus.cli.dlq import dlq
from durabus.cli.doctor import doctor, guarantees
from durabus.cli.events import events
from durabus.cli.failures import CommandFailed, Exit, from_error, report
from durabus.cli.options import JsonOption
from durabus.cli.output import print_json
from durabus.cli.pipeline import pipeline
from durabus.cli.publish import publish
from durabus.cli.schedules import schedules
from durabus.cli.serve import serve
from durabus.cli.stats import stats
from durabus.cli.tokens import tokens
from durabus.cli.worker import worker
from durabus.cli.workers import handlers, locks, workers
from durabus.errors import DurabusError

DEBUG_VARIABLE = "DURABUS_DEBUG"
HELP = """A durable event bus: publish and inspect events, retry failed ones, serve a bus.

Commands use the store that --store URL or the environment variable
DURABUS_STORE names. Without either they use the file durabus.db in the working
folder, as EventBus() does.

Example: durabus publish order.placed --store sqlite:///bus.db
"""

app = App(
    name="durabus",
    help=HELP,
    version=__version__,
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(demo)
app.command(publish)
app.command(events)
app.command(dlq)
app.command(schedules)
app.command(stats)
app.command(db)
app.command(worker)
app.command(workers)
app.command(handlers)
app.command(locks)
app.command(pipeline)
app.command(serve)
app.command(tokens)
app.command(dev)
app.command(doctor)
app.command(guarantees)

Shell = Literal["bash", "zsh", "fish"]


@app.command
def completion(
    shell: Annotated[Shell, Parameter(name="SHELL", help="The shell.")],
    /,
    *,
    json: JsonOption = False,
) -> None:
    """Print the completion script for a shell. To use it in this bash session: eval "$(durabus completion bash)".

    Example: durabus completion bash
    """
    script = app.generate_completion(prog_name="durabus", shell=shell)
    if json:
        print_json({"shell": shell, "script": script})
    else:
        print(script)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        result = app(options_last(argv), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        why = " ".join(str(error).split())
        return report(CommandFailed("wrong usage", why, _help_hint(argv), code=Exit.USAGE))
    except CommandFailed as failure:
        return report(failure)
    except DurabusError as error:
        return report(from_error(error))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does. Python would raise again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:  # noqa: BLE001  (a bug: the user gets a message instead of a traceback)
        return _report_bug(error)
    return result if isinstance(result, int) else Exit.OK


def options_last(argv: Sequence[str]) -> list[str]:
    """Move ``--store`` and ``--json`` from before the command to its end, so that both places work."""
    rest, moved = list(argv), list[str]()
    while rest:
        if rest[0] == "--json" or rest[0].startswith("--store="):
            moved.append(rest.pop(0))
        elif rest[0] == "--store" and len(rest) > 1:
            moved += [rest.pop(0), rest.pop(0)]
        else:
            break
    end = rest.index("--") if "--" in rest else len(rest)
    return rest[:end] + moved + rest[end:]


def _help_hint(argv: Sequence[str]) -> str:
    words = [word for word in argv if not word.startswith("-")]
    known: list[str] = []
    here: App = app
    for word in words:
        if word not in here:
            break
        known.append(word)
        here = here[word]
    return f"`{' '.join(['durabus', *known])} --help` shows the options and an example"


def _report_bug(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    why = f"{type(error).__name__}: {error}"
    hint = f"this is a bug in durabus; set {DEBUG_VARIABLE}=1 to see the traceback"
    return report(CommandFailed("the command crashed", why, hint))
