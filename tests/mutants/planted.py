"""All planted changes, and where the tests are that must notice them."""

from __future__ import annotations

from tests.mutants.batches import ANSWERS
from tests.mutants.defaults import DEFAULTS
from tests.mutants.lifecycle import LIFECYCLE
from tests.mutants.lua import LUA
from tests.mutants.mutant import Mutant
from tests.mutants.postgresql import POSTGRESQL
from tests.mutants.replicated_log import REPLICATED_LOG
from tests.mutants.schedules import SCHEDULES
from tests.mutants.sqlite import SQLITE
from tests.mutants.surface import SURFACE

MUTANTS: tuple[Mutant, ...] = (
    *DEFAULTS,
    *LIFECYCLE,
    *SQLITE,
    *POSTGRESQL,
    *LUA,
    *REPLICATED_LOG,
    *SURFACE,
    *ANSWERS,
    *SCHEDULES,
)
