"""An engine as a process of its own, to be killed: `python -m tests.engine.run_engine ROOT STEP_SECONDS`."""

import sys
from pathlib import Path

from fp8migrate.errors import UserError
from fp8migrate.jobs import Job
from tests.engine.fake_trainer import Behaviour
from tests.engine.stage import Diary, run_jobs, train_job


def jobs() -> tuple[Job, Job, Job]:
    trunk = train_job("trunk", last_step=24)
    return trunk, train_job("branch", start=trunk, last_step=30, seed=1), train_job("beside", seed=2, last_step=24)


class Loud(Diary):
    def job_started(self, job: Job) -> None:
        print("start", job.label, flush=True)


def main() -> int:
    root, step_seconds = Path(sys.argv[1]), float(sys.argv[2])
    behaviour = Behaviour(step_seconds=step_seconds)
    try:
        run_jobs(root, *jobs(), behaviours={job.label: behaviour for job in jobs()}, observer=Loud())
    except UserError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
