"""What the memory store promises."""

from durabus.store.guarantees import Card

CARD = Card(
    title="memory",
    durability="in the memory of this process.",
    lost="everything, when the process ends.",
    order="claims by priority, then by id. The log is the order of the calls.",
    unknown_outcome="does not happen: a call returns or raises before anybody else sees its effect.",
    clock="the host's.",
    wake_up="at once, within the process.",
    limits="memory; `max_history` COMPLETED events of a bus are remembered (10,000 unless told).",
    not_for="anything that must outlive the process.",
)
