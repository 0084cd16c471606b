"""All planted changes, and where the tests are that must notice them."""

from __future__ import annotations

from tests.mutants.defaults import DEFAULTS
from tests.mutants.kernel import KERNEL
from tests.mutants.lua import LUA
from tests.mutants.mutant import Mutant
from tests.mutants.postgresql import POSTGRESQL
from tests.mutants.sqlite import SQLITE
from tests.mutants.surface import SURFACE

MUTANTS: tuple[Mutant, ...] = (*DEFAULTS, *KERNEL, *SQLITE, *POSTGRESQL, *LUA, *SURFACE)
