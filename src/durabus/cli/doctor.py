"""``durabus doctor`` and ``durabus guarantees``."""

from __future__ import annotations

from urllib.parse import urlsplit

from durabus.cli.backend import refuse_absent_file
from durabus.cli.failures import Exit
from durabus.cli.options import DEFAULTS, Common, store_url
from durabus.cli.output import console, plain, print_json, table

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


async def doctor(*, common: Common = DEFAULTS) -> int:
    """Say which settings of a store and its server lose events, or may; exit code 1 if one does. Changes nothing.

    Example: durabus doctor --store postgresql://localhost/shop
    """
    from durabus.store.doctor import examine

    url = store_url(common)
    refuse_absent_file(url)
    findings = await examine(url)
    failed = any(finding.level == "error" for finding in findings)
    if common.json:
        print_json({"store": urlsplit(url).scheme, "ok": not failed, "findings": findings})
    elif not findings:
        print("nothing to complain about")
    else:
        made = table("level", "setting", "value", "what follows, and what to do")
        for one in findings:
            made.add_row(
                f"[{STYLES[one.level]}]{one.level}[/]", plain(one.setting), plain(one.value), plain(one.advice)
            )
        console().print(made)
    return Exit.FAILED if failed else Exit.OK


def guarantees(*, common: Common = DEFAULTS) -> None:
    """Print what each store promises and what it does not, as Markdown.

    Example: durabus guarantees
    """
    from durabus.store.guarantees import cards, page

    if common.json:
        print_json(cards())
    else:
        print(page(), end="")
