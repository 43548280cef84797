"""Tasks: what a worker can be asked to do. A new one is one file and one line in `TASKS`."""

from collections.abc import Callable

from fp8migrate.worker.tasks import forward_check, one_step, train
from fp8migrate.worker.tasks.context import TaskContext

TASKS: dict[str, Callable[[TaskContext], None]] = {
    "train": train.run,
    "forward_check": forward_check.run,
    "one_step": one_step.run,
}
__all__ = ["TASKS", "TaskContext"]
