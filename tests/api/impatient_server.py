"""``python -m tests.api.impatient_server``: a server that waits half a second for headers and bodies."""

import asyncio
import os

import msgspec

from durabus.http import Settings, create_app
from durabus.http.serving import listen, serve

IMPATIENT = Settings(header_timeout=0.5, body_timeout=0.5)


def main() -> None:
    app, listening = create_app("memory://", settings=IMPATIENT), listen("127.0.0.1", 0)
    line = msgspec.json.encode({"url": f"http://127.0.0.1:{listening.getsockname()[1]}", "pid": os.getpid()})

    def ready() -> None:
        os.write(1, line + b"\n")

    with listening:
        asyncio.run(serve(app, listening, stop_within=5, ready=ready))


if __name__ == "__main__":
    main()
