"""``durabus doctor`` checks the settings of a store; ``durabus guarantees`` prints what each store promises."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from durabus.cli.failures import Exit
from durabus.cli.options import DEFAULTS, Common, refuse_absent_file, store_url
from durabus.cli.output import age, console, plain, print_json, table
from durabus.store.connect import make_store
from durabus.views.workers import registered_handlers

if TYPE_CHECKING:
    from durabus.store.checks import Finding

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


async def doctor(*, common: Common = DEFAULTS) -> int:
    """Check a store and its server for settings that lose events or may lose them. Changes nothing.

    It also reports handlers that no live process has, because events wait for them. The exit code is 1 if a setting
    loses events.

    Example: durabus doctor --store postgresql://localhost/shop
    """
    from durabus.store.checks import examine

    url = store_url(common)
    refuse_absent_file(url)
    findings = await examine(url)
    if all(finding.level != "error" for finding in findings):
        findings += await _missing_handlers(url)
    failed = any(finding.level == "error" for finding in findings)
    if common.json:
        print_json({"store": urlsplit(url).scheme, "ok": not failed, "findings": findings})
    elif not findings:
        print("No problems found")
    else:
        made = table("level", "setting", "value", "consequence and remedy")
        for one in findings:
            made.add_row(
                f"[{STYLES[one.level]}]{one.level}[/]", plain(one.setting), plain(one.value), plain(one.advice)
            )
        console().print(made)
    return Exit.FAILED if failed else Exit.OK


async def _missing_handlers(url: str) -> list[Finding]:
    """Findings for handlers that no live node has, on a store that processes share."""
    from durabus.store.checks import Finding

    store = make_store(url)
    if not store.features.shared_between_processes:
        return []
    await store.open()
    try:
        missing = [handler for handler in await registered_handlers(store, None) if handler.missing]
    finally:
        await store.close()
    return [
        Finding(
            level="warning",
            setting=f"handler {handler.handler_id} of bus {handler.bus}",
            value=f"last seen {age(handler.silent_for)} ago on node {handler.node}",
            advice="no live node has this handler, so the events that match it wait. Start its process. If the handler "
            f"was renamed or removed: durabus handlers forget {handler.handler_id} --bus {handler.bus}",
        )
        for handler in missing
    ]


def guarantees(*, common: Common = DEFAULTS) -> None:
    """Print what each store promises and what it does not, as Markdown.

    Example: durabus guarantees
    """
    from durabus.store.guarantees import all_guarantees, page

    if common.json:
        print_json(all_guarantees())
    else:
        print(page(), end="")
