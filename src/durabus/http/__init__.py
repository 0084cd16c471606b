"""The HTTP API: ``create_app`` makes an ASGI app for any store, ``durabus serve`` runs it.

The client imports ``durabus.http.schema`` and must work without the web framework. So this package imports the app,
and with it the framework, only when one of its names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durabus.http.app import HttpApi, create_app
    from durabus.http.auth.tokens import TokenFile
    from durabus.http.settings import Settings

__all__ = ["HttpApi", "Settings", "TokenFile", "create_app"]

_MODULES = {
    "HttpApi": "durabus.http.app",
    "Settings": "durabus.http.settings",
    "TokenFile": "durabus.http.auth.tokens",
    "create_app": "durabus.http.app",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
