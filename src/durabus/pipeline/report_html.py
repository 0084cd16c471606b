"""The HTML of the report: one file with its styles, its scripts and its data. Nothing here needs Spark."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

UPLOT = "1.6.32"
"""The version of uPlot in ``report_page/vendor``."""
STYLES = ("vendor/uPlot.min.css", "style.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "data.js", "charts.js", "tables.js")
WIDE, LONG = 13, 28
"""The characters that fit into one third, and into two thirds, of a card on a phone."""
CHART = (
    '<div class="legend"></div><div class="plot"></div><p class="nothing" hidden></p>'
    '<div class="readout unseen" aria-live="polite"></div>'
    '<details><summary>Show as a table</summary><div class="fallback"></div></details>'
)


class Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


class Unfolded(Markup):
    """A long text that opens with a click."""

    __slots__ = ()


class Quantity(str):
    """A number with its unit. A table aligns it like a number."""

    __slots__ = ()


def html_page(
    data: bytes, *, lake: str, made_at: datetime, with_charts: bool, notices: Sequence[str], sections: Mapping[str, str]
) -> str:
    """Return the page. ``data`` is the JSON that its scripts read; ``sections`` are the tables of the lake itself."""
    styles, scripts = [_file(name) for name in STYLES], [_file(name) for name in SCRIPTS]
    parts = {
        "policy": f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)}",
        "styles": "".join(f"<style>{text}</style>" for text in styles),
        "scripts": "".join(f"<script>{text}</script>" for text in scripts) if with_charts else "",
        "made_at": made_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "lake": escape(lake),
        "hidden": "" if with_charts else " hidden",
        "notices": "".join(f'<p class="notice">{_with_code(text)}</p>' for text in notices),
        "chart": CHART,
        "uplot": UPLOT,
        # A script element ends at the first "</script", also within JSON.
        "data": data.decode().replace("<", "\\u003c"),
        **sections,
    }
    # What a part contains is never taken for a mark of another part.
    pieces = _file("page.html").split("<!-- ")
    made = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition(" -->")
        made += [parts[name], rest]
    return "".join(made)


def html_table(rows: Sequence[Mapping[str, Any]], nothing: str) -> str:
    """Return rows as a table, or a sentence if there are none. A column without any value is left out."""
    if not rows:
        return sentence(nothing)
    styles = {
        name: _style([row[name] for row in rows]) for name in rows[0] if any(row[name] is not None for row in rows)
    }
    head = "".join(f'<th scope="col"{style}>{_heading(name)}</th>' for name, style in styles.items())
    body = "".join(
        f"<tr>{''.join(_cell(name, row[name], style) for name, style in styles.items())}</tr>" for row in rows
    )
    return _scrolled(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", "scroll cards")


def html_facts(facts: Mapping[str, Any]) -> str:
    """Return names and values as a table with a row for each."""
    body = "".join(
        f'<tr><th scope="row">{_heading(name)}</th><td>{shown(value)}</td></tr>' for name, value in facts.items()
    )
    return _scrolled(f"<tbody>{body}</tbody>", "scroll facts")


def sentence(text: str) -> str:
    """Return a sentence that stands where a table would be. Code stands between two backticks."""
    return f'<p class="nothing">{_with_code(text)}</p>'


def badge(text: str, style: str) -> Markup:
    """Return a word with a frame. ``style`` is good, warn or bad."""
    return Markup(f'<span class="badge {style}">{escape(text)}</span>')


def unfolded(text: str) -> Unfolded:
    """Return a long text that opens with a click."""
    return Unfolded(f"<details><summary>Show</summary><code>{escape(text)}</code></details>")


def shown(value: Any) -> str:
    """Return a value of a table as HTML."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10 else f"{value:,.1f}"  # noqa: PLR2004  (few digits before the point)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return escape(str(value))


def in_words(seconds: float) -> str:
    """Return a duration with a fitting unit, such as 3.5 s or 30 d."""
    for limit, size, unit in ((1, 0.001, "ms"), (120, 1, "s"), (3_600, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"


def _with_code(text: str) -> str:
    return "".join(f"<code>{escape(part)}</code>" if n % 2 else escape(part) for n, part in enumerate(text.split("`")))


def _heading(name: str) -> str:
    text = name.replace("_", " ")
    return escape(text[:1].upper() + text[1:])


def _cell(name: str, value: Any, style: str) -> str:
    return f'<td{style} data-label="{_heading(name)}">{shown(value)}</td>'


def _scrolled(table: str, style: str) -> str:
    return f'<div class="{style}" tabindex="0"><table>{table}</table></div>'


def _style(values: Sequence[Any]) -> str:
    """Return the class of a column. On a phone, a card has three cells side by side; long texts get more room."""
    if any(_is_number(value) for value in values):
        return ' class="number"'
    if any(isinstance(value, Unfolded) for value in values):
        return ' class="long"'
    longest = max(0 if isinstance(value, Markup) else len(shown(value)) for value in values)
    if longest > WIDE:
        return ' class="long"' if longest > LONG else ' class="wide"'
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Quantity) and not isinstance(value, bool)


def _file(name: str) -> str:
    return files(__package__).joinpath("report_page", *name.split("/")).read_text(encoding="utf-8")


def _hashes(texts: Sequence[str]) -> str:
    """Return the sources for a content security policy that allows exactly these inline texts."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
