"""Every example runs by itself, prints what its page says, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

PRINTED = {
    "agent.py": """\
the first worker ended with signal 9
paid so far: ['model', 'weather in Oslo', 'model', 'flight to Oslo']
answer: Oslo it is
paid in all: ['model', 'weather in Oslo', 'model', 'flight to Oslo', 'model', 'hotel in Oslo', 'model']
""",
    "debounce.py": """\
five at once: [1, 1, 1, 1, 1]
fresh enough: 1
another page: 2
taken in all: 2
""",
    "event_manager.py": """\
audit: order.placed
mail for order 7 sent on call 2
PUBLISHED (attempt 0)
PICKED (attempt 1)
FAILED (attempt 1): TransientError: mail server is restarting
PICKED (attempt 2)
COMPLETED (attempt 2)
handler states cleaned up: 2
""",
    "ordered_pipeline.py": """\
ada: placed > paid > packed > shipped
bob: placed > paid > packed > shipped
eve: placed > paid > packed > shipped
""",
    "outbox_sqlite.py": """\
rolled back: order 2 is too large
orders in the table: [1]
event: order.placed for order 1
another event: None
""",
    "projection.py": """\
applied 3: {'ada': 15, 'grace': 25}
applied 0 more, lag 0
rebuilt equals incremental: True
""",
    "queue_by_hand.py": """\
polled order 1: PROCESSING, attempt 1
order 4 was abandoned and is now on attempt 2
too late: claim on 4 lost: another claim holds it, or it was settled, released, reset, cancelled or taken over
order 1: COMPLETED
order 2: FAILED
order 3: COMPLETED_WITH_ERRORS
order 4: COMPLETED
""",
    "quickstart.py": """\
welcome, Ada
user.renamed was seen on attempt 1
""",
    "saga.py": """\
order 1: stock.reserve
order 1: card.charge
order 1: parcel.ship
order 1: shipped
order 2: stock.reserve
order 2: card.charge failed: UnrecoverableError: card is blocked
order 2: stock.reserve.undo
order 2: cancelled
card.charge is a child of order.placed: True
""",
    "shop_sqlite.py": """\
order 1 charged on attempt 1
order 2 charged on attempt 2
dead letter: order 3, COMPLETED_WITH_ERRORS, UnrecoverableError: card is blocked
order 3 charged on attempt 1
left in the dead letters: 0
""",
    "sync_script.py": """\
published and handled
the sum is 42
""",
    "typed_payloads.py": """\
order.placed: order 7 over 12.50
order 7 goes by post
COMPLETED_WITH_ERRORS: PayloadDecodeError
""",
}


def test_every_example_has_its_output_here() -> None:
    # Those of the pipeline start Spark: tests/pipeline runs them.
    quick = [path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("pipeline_")]
    assert sorted(quick) == sorted(PRINTED)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_example_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED[name], "")
    assert not list(tmp_path.iterdir())
