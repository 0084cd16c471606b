"""The HTTP API: ``create_app`` makes an ASGI app for any store, ``durabus serve`` runs it."""

from durabus.http.app import HttpApi, create_app
from durabus.http.auth.tokens import TokenFile
from durabus.http.settings import Settings

__all__ = ["HttpApi", "Settings", "TokenFile", "create_app"]
