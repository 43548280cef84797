"""Phases: pure functions that say which jobs come next, or that they are done. They start nothing.

A new phase is one file and one line here. Order is that of promotion: each runs when the one before it passed.
"""

from fp8migrate.phases.baseline import Baseline
from fp8migrate.phases.integration import Integration
from fp8migrate.phases.schema import Phase
from fp8migrate.phases.small_scale import SmallScale

PHASES: tuple[Phase, ...] = (Baseline(), Integration(), SmallScale())

__all__ = ["PHASES"]
