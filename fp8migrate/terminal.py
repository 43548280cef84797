"""What a run shows while it goes on: phases as they pass, progress with time left. Quiet where nobody watches."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fp8migrate.engine.observer import job_steps
from fp8migrate.jobs import Job, Train
from fp8migrate.records.schema import Outcome

# Without a terminal (CI, a log file) progress is a line now and then.
_QUIET_INTERVAL_SECONDS = 30.0
_STATE_MARKS = {"passed": "✓", "failed": "✗", "inconclusive": "?", "screened": "~"}


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass
class Pace:
    """Steps done against steps to do, and the time that the rest will take at the rate so far."""

    total: int
    finished: int = 0
    reused: int = 0
    running: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return self.finished + self.reused + sum(self.running.values())

    def seconds_left(self, now: float) -> float | None:
        """None before there is a rate to go by."""
        own = self.done - self.reused
        elapsed = now - self.started
        if own <= 0 or elapsed < 1:
            return None
        return elapsed / own * max(0, self.total - self.done)


class TerminalObserver:
    """Draws on stderr, so that stdout holds the verdict alone. One bar on a terminal; elsewhere lines, few of them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = console.is_terminal and not os.environ.get("CI")
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._pace = Pace(0)
        self._said = 0.0
        self._jobs = (0, 0)

    def message(self, text: str) -> None:
        self.console.print(f"  {text}", style="dim", markup=False, highlight=False, soft_wrap=True)

    def phase_started(self, name: str) -> None:
        self.console.print(f"▶ {name}", style="bold", markup=False, highlight=False)

    def jobs_planned(self, jobs: Sequence[Job], total_steps: int, because: str) -> None:
        self.message(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}: {because}")
        if self._jobs[0] < self._jobs[1]:  # those of another plan: one progress for all
            self._pace.total += total_steps
            self._jobs = (self._jobs[0], self._jobs[1] + len(jobs))
        else:
            self._close()
            self._pace, self._jobs, self._said = Pace(total_steps), (0, len(jobs)), time.monotonic()
        if self._live and self._bar is None:
            columns = (TextColumn("  "), BarColumn(32), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("starting")
            self._bar.start()

    def job_started(self, job: Job) -> None:
        self._pace.running[job.digest] = 0
        self._draw()

    def job_progress(self, job: Job, step: int) -> None:
        first = job.task.first_step if isinstance(job.task, Train) else 0
        self._pace.running[job.digest] = max(0, step - first)
        self._draw()

    def job_finished(self, job: Job, outcome: Outcome, reused: bool) -> None:
        self._pace.running.pop(job.digest, None)
        if reused:
            self._pace.reused += job_steps(job)
        else:
            self._pace.finished += job_steps(job)
        self._jobs = (self._jobs[0] + 1, self._jobs[1])
        if outcome.status != "completed":
            self.message(f"{job.label}: {outcome.status}{f' ({outcome.cause})' if outcome.cause else ''} {outcome.detail}")
        self._draw()
        if self._jobs[0] == self._jobs[1]:
            self._close()

    def phase_finished(self, name: str, state: str) -> None:
        mark = _STATE_MARKS.get(state, "·")
        self.console.print(f"{mark} {name}: {state}", style="bold", markup=False, highlight=False)

    def close(self) -> None:
        """Take the bar away, also when the run is stopped in the middle."""
        self._close()

    def _line(self) -> str:
        pace = self._pace
        share = pace.done / max(1, pace.total)
        left = pace.seconds_left(time.monotonic())
        rest = "" if left is None else f", about {duration(left)} left"
        return f"{self._jobs[0]} of {self._jobs[1]} jobs, {share:.0%}{rest}"

    def _draw(self) -> None:
        if self._bar is not None and self._task is not None:
            total = max(1, self._pace.total)
            self._bar.update(self._task, completed=self._pace.done, total=total, description=self._line())
        elif not self._live and time.monotonic() - self._said >= _QUIET_INTERVAL_SECONDS:
            self._said = time.monotonic()
            self.message(self._line())

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
