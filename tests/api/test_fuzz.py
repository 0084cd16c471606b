"""A short run of schemathesis; ``make fuzz`` is the long one."""

from pathlib import Path

import pytest
from tests.api.fuzz import fuzz

EXAMPLES = 15
"""Examples for each operation. Most requests come from the phase that covers the document, whatever this number is."""
REQUESTS = 2_000

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_request_breaks_the_server_or_the_document(tmp_path: Path) -> None:
    code, report, count = fuzz(f"sqlite:///{tmp_path}/fuzz.db", tmp_path, EXAMPLES, seed=1)
    assert code == 0, report
    assert count >= REQUESTS
    assert "Traceback" not in report
