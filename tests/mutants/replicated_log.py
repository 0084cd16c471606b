"""What a node of NATS or Kafka does about records that are damaged, foreign or replaced."""

from tests.mutants.mutant import Mutant

RECORDS = "stores/replicated_log/records.py"
DAMAGE = "tests/replicated_log/test_damage.py::test_"

REPLICATED_LOG = (
    Mutant(
        "Replicated log: checksum of a record",
        RECORDS,
        "    if found != written:\n",
        "    if False:\n",
        f"{DAMAGE}a_damaged_record_stops_every_node_and_ends_every_wait[a flipped bit]",
        "A node obeys a damaged command, and decides otherwise than the nodes that read an undamaged copy.",
    ),
    Mutant(
        "Replicated log: record that lost its checksum",
        RECORDS,
        "        if _could_be_ours(data):\n",
        "        if False:\n",
        f"{DAMAGE}a_damaged_record_stops_every_node_and_ends_every_wait[no label any more]",
        "A node takes a damaged command for a record of another program and skips it.",
    ),
    Mutant(
        "Replicated log: record of another program",
        RECORDS,
        '        raise NoEnvelopeError(f"not a record',
        '        raise DamagedRecordError(f"not a record',
        "tests/replicated_log/test_node.py::test_foreign_records_are_skipped_counted_and_reported",
        "A record that another program writes by mistake stops every node.",
    ),
    Mutant(
        "Replicated log: record at the position of a node",
        "stores/replicated_log/replica.py",
        "        if fingerprint(entry) != self.fingerprints().get(lane):\n",
        "        if False:\n",
        f"{DAMAGE}a_suffix_that_was_rewritten_behind_our_position_stops_the_node[public]",
        "After a broker lost its newest records, a node reads on in a log that is not the one it has read.",
    ),
)
