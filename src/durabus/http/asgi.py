"""Types of the arguments that an ASGI app and the routes of the server are called with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from litestar import Request

AsgiScope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[AsgiScope, Receive, Send], Awaitable[None]]
AnyRequest = Request[Any, Any, Any]
"""A request as a route gets it. Users, sign-ins and states of the framework have no type of their own here."""

LISTEN = "durabus.listen"
"""Key in the scope of a function that tells the stand-alone server that a request only waits for events."""
