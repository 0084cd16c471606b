"""Ids that are derived from the function: alike in every process that runs the code, however it was started."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from durabus import Event
from durabus.worker.handler import derived_id

SHOP = """
import functools

from durabus.worker.handler import derived_id


def charge(event): ...


def logged(function):
    @functools.wraps(function)
    def wrapper(event): ...

    return wrapper


class Mail:
    def __call__(self, event): ...


def show():
    handlers = charge, functools.partial(charge), logged(charge), Mail()
    print(*(derived_id("order.*", handler) for handler in handlers))


if __name__ == "__main__":
    show()
"""


@pytest.mark.parametrize(
    ("started", "module"), [(["shop.py"], "shop"), (["-m", "store.shop"], "store.shop")], ids=["script", "module"]
)
def test_a_function_has_the_id_that_a_program_which_imports_it_gives_it(
    tmp_path: Path, started: list[str], module: str
) -> None:
    (tmp_path / "store").mkdir()
    for path in ("shop.py", "store/shop.py"):
        (tmp_path / path).write_text(SHOP)
    ended = subprocess.run(
        [sys.executable, *started], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout.split() == [f"order.*@{module}.charge"] * 3 + [f"order.*@{module}.Mail"]


def test_a_process_that_multiprocessing_spawns_gives_the_same_id(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("__main__", "__mp_main__").replace("print(*", "shown.extend("))
    shown: list[str] = []
    runpy.run_path(str(tmp_path / "shop.py"), {"shown": shown}, "__mp_main__")
    assert shown[0] == "order.*@shop.charge"


def test_a_program_without_a_file_has_no_better_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def charge(event: Event) -> None: ...

    charge.__module__, charge.__qualname__ = "__main__", "charge"
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert derived_id("order.*", charge) == "order.*@__main__.charge"
