"""Phases: pure functions that say which jobs come next, or that they are done. They start nothing."""
