"""What the advisor costs: a plan's BF16 run with and without it, in turn, and the sampling's own clock beside it."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from fp8migrate.jobs import DataOrder, Job, Precision, Role, Train
from fp8migrate.phases.advisor import tensor_stats
from fp8migrate.plan.load import load_plan
from fp8migrate.records.schema import Outcome, RunFile
from fp8migrate.records.store import read_run
from fp8migrate.records.writer import RunWriter, save_run_file
from fp8migrate.worker.data import load_corpus
from fp8migrate.worker.runtime import choose_device, make_deterministic
from fp8migrate.worker.tasks.context import TaskContext
from fp8migrate.worker.tasks.train import run as train
from tests.worker.runs import ENVIRONMENT, Stop

_ROUNDS = 3


def run() -> Iterator[tuple[str, str]]:
    on_gpu = choose_device("auto").type == "cuda"
    name = "one_gpu" if on_gpu else "quickstart"
    plan = load_plan(Path(__file__).parents[2] / "configs" / f"{name}.yaml").plan
    stats = tensor_stats(plan, "cuda" if on_gpu else "cpu")
    assert stats is not None
    yield (
        "sampled",
        f"{len(stats.steps)} of {plan.training.num_steps} steps, {stats.max_tokens} rows, {len(stats.recipes)} recipes",
    )
    task = Train(
        model=plan.model,
        data=plan.data,
        training=plan.training,
        precision=Precision(),
        data_order=DataOrder(seed=plan.training.seed),
        last_step=plan.training.num_steps,
    )
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    own = []
    for _ in range(_ROUNDS):
        for name, chosen in (("without", task), ("with", task.model_copy(update={"tensor_stats": stats}))):
            took, sampling = _train(chosen)
            seconds[name].append(took)
            own.append(sampling)
    found = {name: median(values) for name, values in seconds.items()}
    yield "run without, with", f"{found['without']:.2f} s, {found['with']:.2f} s: {found['with'] / found['without'] - 1:+.2%}"
    sampling = median(value for value in own if value)
    yield "sampling alone", f"{sampling:.3f} s, {sampling / found['without']:.2%} of the run"


def _train(task: Train) -> tuple[float, float]:
    """Seconds of a run in this process, and of those the advisor's."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        job = Job(task=task, device="auto", label="run", role=Role(design="baseline", arm="baseline"))
        save_run_file(directory, RunFile(key="k", job=job, environment=ENVIRONMENT, outcome=Outcome(status="running")))
        make_deterministic(1)
        corpus = load_corpus(task.data)
        context = TaskContext(job, directory, None, RunWriter(directory), choose_device("auto"), corpus, Stop())  # type: ignore[arg-type]
        started = time.perf_counter()
        train(context)
        return time.perf_counter() - started, float(read_run(directory).facts.get("advisor_seconds", 0.0))
