"""The suite is shipped with durabus and asks for pytest only where it is used."""

import subprocess
import sys

WITHOUT_PYTEST = "import sys; sys.modules['pytest'] = None; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_durabus_and_its_stores_do_not_need_pytest() -> None:
    done = run(WITHOUT_PYTEST + "import durabus, durabus.store.connect, durabus.stores.sqlite.store")
    assert done.returncode == 0, done.stderr


def test_without_pytest_the_suite_says_what_to_install() -> None:
    done = run(WITHOUT_PYTEST + "import durabus.testing.conformance")
    assert "ImportError: durabus.testing.conformance runs on pytest" in done.stderr
    assert "pip install pytest anyio" in done.stderr
