"""Records the demo's screen as docs/screenshots/demo.svg: `python -m tests.cli.record_demo`.

The pictures are the demo's own, one every half second and one whenever something happens; CSS shows them in turn.
"""

import asyncio
import io
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console, Group, RenderableType
from rich.text import Text

from durabus.demo import run
from durabus.demo.screen import Screen, render

TARGET = Path(__file__).resolve().parents[2] / "docs" / "screenshots" / "demo.svg"
ORDERS = 1500
COLUMNS = 84
EVERY = 0.5
LAST_STAYS = 8.0

# Filled in by rich. Its own template names a web font, which a picture in a page may not load.
FRAME = """
<style>{styles}</style>
<defs>{lines}</defs>
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}<g class="matrix">{matrix}</g></g>
"""
WINDOW = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
</style>
{chrome}
"""


class Recorder(Screen):
    """The demo's screen, which keeps its pictures instead of drawing them."""

    def __init__(self, _console: Console, *args: Any) -> None:
        super().__init__(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"}), *args)
        self.frames: list[tuple[float, RenderableType]] = []
        self._told = 0

    def show(self) -> None:
        told = len(self._messages)
        if told > self._told or not self.frames or self._seconds - self.frames[-1][0] >= EVERY:
            self.frames.append((self._seconds, self.picture()))
        self._told = told


def exported(frame: RenderableType, number: int, lines: int, template: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(f"[bold]$ durabus demo --orders {ORDERS}[/]\n")
    shown = console.render_lines(frame, pad=False)
    console.print(frame)
    console.print("\n" * max(0, lines - len(shown) - 1))
    return console.export_svg(title="durabus demo", code_format=template, unique_id=f"f{number}")


def animated(frames: list[tuple[float, RenderableType]]) -> str:
    height = max(len(Console(width=COLUMNS, file=io.StringIO()).render_lines(frame)) for _, frame in frames)
    total = frames[-1][0] + LAST_STAYS
    parts = [exported("", len(frames), height, WINDOW)]
    for number, (begin, frame) in enumerate(frames):
        end = frames[number + 1][0] if number + 1 < len(frames) else total
        first, last = 100 * begin / total if number else 0.0, 100 * end / total
        rest = "visible" if end == total else "hidden"
        parts.append(
            f"<style>@keyframes k{number} {{ 0% {{ visibility: hidden }} {first:.2f}% {{ visibility: visible }} "
            f"{last:.2f}%, 100% {{ visibility: {rest} }} }}\n"
            f"#k{number} {{ visibility: {rest} }}\n"
            f"@media (prefers-reduced-motion: no-preference) "
            f"{{ #k{number} {{ animation: k{number} {total:.1f}s step-end infinite }} }}</style>\n"
            f'<g id="k{number}">{exported(frame, number, height, FRAME)}</g>'
        )
    return "\n".join([*parts, "</svg>\n"])


async def main() -> None:
    recorders: list[Recorder] = []
    reports: list[Group] = []

    def record(*args: Any) -> Recorder:
        recorders.append(Recorder(*args))
        return recorders[0]

    def keep(*args: Any) -> Group:
        reports.append(render(*args))
        return reports[0]

    with patch.object(run, "Screen", record), patch.object(run, "render", keep):
        code = await run.run_demo(run.DemoOptions(orders=ORDERS))
    assert code == 0, f"the demo failed with {code}"
    frames = recorders[0].frames
    seconds, picture = frames[-1]
    TARGET.write_text(animated([*frames, (seconds + 2.0, Group(picture, Text(), reports[0]))]), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
