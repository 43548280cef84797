"""Errors that reach users. Each says what, where and what next, and carries its exit code."""

from enum import IntEnum
from functools import partial
from typing import Any


class ExitCode(IntEnum):
    """What a shell or a CI job sees. One meaning each, so that a gate never takes a broken run for a verdict."""

    PASS = 0
    BUG = 1
    USAGE = 2
    FAIL = 3
    INCONCLUSIVE = 4
    INFRASTRUCTURE = 5


class UserError(Exception):
    """Base of all errors that are shown as one message without a traceback."""

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None) -> None:
        self.what, self.where, self.next_step = what, where, next_step
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors of a helper process come back whole: what takes keywords is not rebuilt from its message."""
        return partial(type(self), self.what, where=self.where, next_step=self.next_step), ()

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n{self.next_step}" if self.next_step else head


class UsageError(UserError):
    """A command line that cannot be carried out, or a file or folder that cannot be used."""


class PlanError(UserError):
    """A plan that cannot be read or cannot be run as written."""


class InfrastructureError(UserError):
    """Something outside the experiment stopped it (full disk, signal, preemption): there is no evidence either way."""

    exit_code = ExitCode.INFRASTRUCTURE
