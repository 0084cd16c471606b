"""The HTTP API: ``create_app`` makes an ASGI app for any store, ``durabus serve`` runs it."""

from durabus.server.app import HttpApi, create_app
from durabus.server.settings import Settings
from durabus.server.tokens import TokenFile

__all__ = ["HttpApi", "Settings", "TokenFile", "create_app"]
