"""The ledgers of the pipeline, compared with the store, the lake, and each other."""

import hashlib
import json
from functools import partial

from tests.pipeline.recomputed.files import Files
from tests.pipeline.recomputed.silver import gaps, in_gap

SAMPLES = 5


def check_runs(files: Files) -> None:
    """Each entry of bronze was archived by one run."""
    runs = files.read("ops.runs").to_dicts()
    archived = [row for row in runs if row["step"] == "bronze.event_log" and row["error"] is None]
    assert sum(row["rows"] for row in archived) == len(files.archived)
    assert max(row["watermark"] for row in archived) == len(files.archived) - 1
    assert all(row["seconds"] >= 0 for row in runs)


def check_gaps(files: Files) -> None:
    """Each gap has the entries between its positions, and lacks those of them that are not in bronze."""
    present = {entry["position"] for entry in files.archived}
    for gap in gaps(files):
        inside = in_gap(files, gap)
        assert gap["entries"] in {None, len(inside)}
        assert gap["missing"] in {None, sum(one not in present for one in inside)}


def check_expectations(files: Files) -> None:
    """The newest result of each expectation is that of its rule over the rows of its table."""
    for row in files.read("ops.expectations").sort("checked_at").unique(["name", "table_name"], keep="last").to_dicts():
        table = files.read(row["table_name"])
        met = table.select(files.rules[row["name"]].fill_null(value=False)).to_series()
        broken = table.filter(~met)
        assert (row["rows"], row["broken"]) == (len(table), len(broken)), row["name"]
        samples = [json.loads(sample) for sample in row["samples"]]
        assert len(samples) == min(SAMPLES, len(broken))
        key = "durabus_id" if "durabus_id" in table.columns else "id"
        assert {sample[key] for sample in samples} <= set(broken[key])


def check_proofs(files: Files) -> None:
    """No proof was changed or removed, and the newest one says what store and lake have."""
    previous, kept = "", files.kept()
    rows = files.read("ops.proofs").sort("number").to_dicts()
    assert [row["number"] for row in rows] == list(range(len(rows)))
    for row in rows:
        assert row["previous"] == previous
        previous = hashlib.sha256(f"{previous}\n{row['proof']}".encode()).hexdigest()
        assert row["hash"] == previous
    proof = json.loads(rows[-1]["proof"])
    positions = [entry["position"] for entry in files.archived]
    assert (proof["entries"], proof["until"]) == (len(positions), str(positions[-1]))
    assert proof["behind"] == sum(one > positions[-1] for one in kept)
    assert proof["missing"] == len({one for one in kept if one <= positions[-1]} - set(positions))
    first = 0
    for segment in proof["segments"]:
        own = positions[first : first + segment["rows"]]
        assert (segment["first_seq"], segment["in_store"]) == (first, sum(one in kept for one in own))
        assert segment["state"] == ("equal" if segment["in_store"] == len(own) else "trimmed")
        assert (segment["hash"] == segment["store_hash"]) is (segment["state"] == "equal")
        first += segment["rows"]
    assert first == len(positions)
    ledger = partial(sorted, key=lambda gap: gap["gap_id"])
    named = ("gap_id", "after", "until", "entries", "missing")
    assert [[gap[name] for name in named] for gap in ledger(proof["gaps"])] == [
        [gap[name] for name in named] for gap in ledger(gaps(files))
    ]
