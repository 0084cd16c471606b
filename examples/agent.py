"""An agent that calls a model and tools in a loop, is killed in the middle, and goes on without paying twice.

Each call of the model and of a tool is a durable step: the store keeps its value before the loop goes on. A second
process takes over as soon as the store sees that the first one has ended, and gets the kept values.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from durabus import Context, Event, EventBus

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
PAID = FOLDER / "paid.txt"
QUESTIONS = ["weather in Oslo", "flight to Oslo", "hotel in Oslo"]

bus = EventBus(f"sqlite:///{FOLDER / 'agent.db'}", lease=1.0, poll_interval=0.1)


async def ask_model(history: list[Any]) -> dict[str, str]:
    """A fake model: it asks for one tool after the other, and then it is done."""
    pay("model")
    asked = len(history) // 2
    return {"tool": QUESTIONS[asked]} if asked < len(QUESTIONS) else {"answer": "Oslo it is"}


async def use_tool(name: str) -> str:
    pay(name)
    return f"result of {name}"


def pay(what: str) -> None:
    with PAID.open("a") as ledger:
        ledger.write(f"{what}\n")


@bus.on("trip.planned", id="agent", timeout=None)
async def agent(_event: Event, ctx: Context) -> str:
    history: list[Any] = []
    while True:
        said = await ctx.step("model", ask_model, history)
        if "answer" in said:
            return str(said["answer"])
        found = await ctx.step("tool", use_tool, said["tool"])
        history += [said, found]
        if "--die" in sys.argv and len(history) == 4:
            os.kill(os.getpid(), signal.SIGKILL)


async def worker() -> None:
    async with bus:
        await asyncio.Event().wait()


async def main() -> None:
    first = await asyncio.create_subprocess_exec(sys.executable, __file__, str(FOLDER), "--die")
    async with EventBus(f"sqlite:///{FOLDER / 'agent.db'}", serve=False) as publisher:
        handle = publisher.emit("trip.planned", {"to": "Oslo"})
        await handle.stored()
        print("the first worker ended with signal", -(await first.wait()))
        print("paid so far:", PAID.read_text().splitlines())
        second = await asyncio.create_subprocess_exec(sys.executable, __file__, str(FOLDER), "--live")
        print("answer:", await handle.result())
        second.kill()
        await second.wait()
    print("paid in all:", PAID.read_text().splitlines())
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    asyncio.run(worker() if len(sys.argv) > 1 else main())
