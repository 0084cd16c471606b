"""The three things an ASGI app is called with, as every server and every test calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LISTEN = "durabus.listen"
"""Where the stand-alone server puts a function into the scope: to tell it that a request only waits for events."""
