"""How the browser of the dashboard's tests comes to a new machine."""

import runpy
import shutil
from pathlib import Path

import pytest
from tests.dashboard import chromium as program
from tests.dashboard.chromium import chromium, install

APT = """#!/bin/sh
echo "$1" >> {place}/calls
if [ "$1" = install ]; then printf '#!/bin/sh\\n' > {place}/chromium; chmod +x {place}/chromium; fi
exit {code}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs, on a machine whose user is root."""
    chmod = shutil.which("chmod")
    assert chmod is not None
    (tmp_path / "chmod").symlink_to(chmod)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def write_apt(place: Path, *, code: int) -> None:
    (place / "apt-get").write_text(APT.format(place=place, code=code))
    (place / "apt-get").chmod(0o755)


def test_make_installs_chromium_once(place: Path) -> None:
    write_apt(place, code=0)
    assert [install(), install()] == ["", ""]
    assert (place / "calls").read_text().split() == ["update", "install"]
    assert chromium() == str(place / "chromium")


def test_the_program_ends_without_an_error_once_the_browser_is_there(place: Path) -> None:
    write_apt(place, code=0)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(program.__file__, run_name="__main__")
    assert end.value.code is None


def test_a_failed_installation_is_reported(place: Path) -> None:
    write_apt(place, code=100)
    assert install().startswith("apt-get update failed")
    assert (place / "calls").read_text().split() == ["update"]
