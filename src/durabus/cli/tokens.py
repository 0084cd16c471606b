"""``durabus tokens``: creates, lists and revokes tokens of the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import JsonOption
from durabus.cli.output import age, console, iso, plain, print_json, say, table
from durabus.cli.serve import TOKENS_VARIABLE, require_server
from durabus.clock import SystemClock

if TYPE_CHECKING:
    from durabus.http.auth.tokens import Token, TokenFile

tokens = App(name="tokens", help="Tokens of the HTTP API: create, list, revoke.")

DAY = 86_400.0
ScopeName = Literal["publish", "claim", "read", "admin"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """``--tokens`` and ``--json``."""

    tokens: Annotated[Path | None, Parameter(env_var=TOKENS_VARIABLE, help="File that the server reads.")] = None
    json: JsonOption = False


DEFAULTS = TokenOptions()


@tokens.command
def create(
    name: Annotated[str, Parameter(name="NAME", help="Name of the holder, as lists show it.")],
    /,
    *,
    scope: Annotated[
        tuple[ScopeName, ...], Parameter(help="What the token allows. Repeat the option for several.", negative="")
    ],
    tag: Annotated[
        tuple[str, ...],
        Parameter(help="Only events with this tag. Repeat the option for several.", negative="", show_default=False),
    ] = (),
    bus: Annotated[
        tuple[str, ...],
        Parameter(help="Only this bus. Repeat the option for several.", negative="", show_default=False),
    ] = (),
    days: Annotated[float | None, Parameter(help="Days until the token expires. Default: it does not expire.")] = None,
    options: TokenOptions = DEFAULTS,
) -> None:
    """Create a token and print it. It cannot be shown again: the file keeps only its hash.

    Example: durabus tokens create mailer --scope claim --tag email --days 90 --tokens tokens.json
    """
    from durabus.http.auth.access import Scope
    from durabus.model.limits import seconds

    after = None if days is None else seconds(days * DAY, "days in seconds", allow_zero=False)
    made, text = _file(options).create(name, [Scope(one) for one in scope], tags=tag, buses=bus, expires_after=after)
    if options.json:
        print_json({**_document(made), "token": text})
        return
    print(text)
    say(f"token {made.id} for {made.name!r}: save it now, it cannot be shown again")


@tokens.command(name="list")
def list_tokens(*, options: TokenOptions = DEFAULTS) -> None:
    """List the tokens, without the secrets.

    Example: durabus tokens list --tokens tokens.json
    """
    found = _file(options, must_exist=True).tokens()
    if options.json:
        print_json([_document(one) for one in found])
        return
    now = SystemClock().now()
    made = table("id", "name", "scopes", "tags", "buses", ("created", {"justify": "right"}), "state")
    for one in found:
        state = "valid" if one.valid_at(now) else "revoked" if one.revoked_ts is not None else "expired"
        row = (one.id, plain(one.name), " ".join(one.scopes), plain(" ".join(one.tags)), plain(" ".join(one.buses)))
        made.add_row(*row, f"{age(now - one.created_ts)} ago", state)
    console().print(made)


@tokens.command
def revoke(
    id_: Annotated[str, Parameter(name="ID", help="As `durabus tokens list` shows it.")],
    /,
    *,
    options: TokenOptions = DEFAULTS,
) -> None:
    """Revoke a token now. Servers that read the file refuse it from the next request on.

    Example: durabus tokens revoke 5f0c93a1be27 --tokens tokens.json
    """
    gone = _file(options, must_exist=True).revoke(id_)
    if gone is None:
        raise CommandFailed(
            "no such token", f"no token has the id {id_!r}", "`durabus tokens list` lists them", code=Exit.NOT_FOUND
        )
    if options.json:
        print_json(_document(gone))
        return
    print(f"token {gone.id} of {gone.name!r} is revoked")


def _file(options: TokenOptions, *, must_exist: bool = False) -> TokenFile:
    require_server()
    from durabus.http.auth.tokens import TokenFile

    if options.tokens is None:
        raise CommandFailed(
            "no tokens file",
            f"neither --tokens nor the environment variable {TOKENS_VARIABLE} is set",
            "add --tokens tokens.json",
            code=Exit.USAGE,
        )
    if must_exist and not options.tokens.exists():
        raise CommandFailed(
            "no tokens file",
            f"{options.tokens} does not exist",
            "create it with `durabus tokens create`",
            code=Exit.NOT_FOUND,
        )
    return TokenFile(options.tokens)


def _document(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": token.scopes,
        "tags": token.tags,
        "buses": token.buses,
        "created_at": iso(token.created_ts),
        "expires_at": iso(token.expires_ts),
        "revoked_at": iso(token.revoked_ts),
    }
