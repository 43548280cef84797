"""What an arm's logging, monitors and checks cost: tokens a second of the worker's own step and of a bare loop, in turns.

The bare loop is what somebody would write over the same model, optimizer and batches: nothing is logged, hashed, counted or
checked, and no loss is read back, so that on a GPU the host runs ahead. A step is one micro-batch: the least work that the cost
of a step is spread over. Validations and checkpoints, which a plan has every so many steps, are in neither.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import DelayedRecipe
from fp8migrate.jobs import DataOrder, Job, Precision, Role, Train
from fp8migrate.plan.schema import LlamaModel, PythonSourceData, Training
from fp8migrate.records.schema import Outcome, RunFile
from fp8migrate.records.writer import RunWriter, save_run_file
from fp8migrate.worker.backends.te_modules import Passes, import_transformer_engine
from fp8migrate.worker.data import Corpus, load_corpus
from fp8migrate.worker.data.sampling import TrainingStream, training_stream
from fp8migrate.worker.models.llama import token_losses
from fp8migrate.worker.optimizer import learning_rate, set_learning_rate
from fp8migrate.worker.runtime import StopSignal, choose_device, make_deterministic
from fp8migrate.worker.tasks.context import Interrupted, TaskContext
from fp8migrate.worker.tasks.train import TrainingState, build, log_update
from fp8migrate.worker.tensor_watch import TensorWatch
from fp8migrate.worker.update_log import UpdateLog
from tests.benchmarks.emulation import free, synchronize
from tests.benchmarks.rounds import spread
from tests.worker.runs import ENVIRONMENT

# Short turns: what else the host does from second to second then hits both alike.
_ROUNDS, _SECONDS_PER_TURN, _WARM_UP = 36, 0.25, 3
_DELAYED = Precision(backend="transformer_engine", recipe=DelayedRecipe(amax_history_len=16), keep_bf16=("lm_head",))
Rows = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Size:
    """A model and the sequences [batch, sequence] of one step."""

    model: LlamaModel
    batch: int
    sequence: int


def sizes(device: torch.device) -> dict[str, Size]:
    if device.type == "cuda":
        small = LlamaModel(num_layers=8, hidden_size=1024, num_heads=16, num_kv_heads=8, ffn_hidden_size=2816)
        large = LlamaModel(num_layers=16, hidden_size=2048, num_heads=32, num_kv_heads=8, ffn_hidden_size=8192)
        return {"95M, 16 x 512 tokens": Size(small, 16, 512), "1B, 4 x 2048 tokens": Size(large, 4, 2048)}
    tiny = LlamaModel(num_layers=4, hidden_size=256, num_heads=8, num_kv_heads=4, ffn_hidden_size=704)
    return {"hidden 256, 4 layers, 8 x 128 tokens": Size(tiny, 8, 128)}


def arms(device: torch.device) -> dict[str, Precision | str]:
    """By name the precision, or why the arm cannot be measured here."""
    delayed: Precision | str = _DELAYED
    if device.type != "cuda":
        delayed = "skipped: needs a CUDA GPU"
    else:
        try:
            import_transformer_engine()
        except UsageError as error:
            delayed = f"skipped: {error}".splitlines()[0]
    return {"bf16": Precision(), "transformer_engine delayed": delayed}


class Arm:
    """One model, trained by the worker's step (`ours`) or by a loop without us (`bare`)."""

    def __init__(self, size: Size, precision: Precision, corpus: Corpus, device: torch.device, directory: Path) -> None:
        training = Training(
            num_steps=100_000,
            sequence_length=size.sequence,
            micro_batch_size=size.batch,
            global_batch_size=size.batch,
            learning_rate=3e-4,
            warmup_steps=1000,
        )
        order = DataOrder(seed=training.seed)
        self.task = Train(
            model=size.model,
            data=PythonSourceData(),
            training=training,
            precision=precision,
            data_order=order,
            last_step=training.num_steps,
        )
        self.context = task_context(self.task, corpus, device, directory)
        self.stream: TrainingStream = training_stream(corpus, order, size.sequence, size.batch)
        self.state: TrainingState = build(size.model, training, precision, device)
        watch = TensorWatch(self.state.model, self.task, self.context.writer)
        self.log = UpdateLog(self.context.writer, watch, device)

    def ours(self, steps: int) -> None:
        """As `tasks.train.run` goes through its steps."""
        for _ in range(steps):
            if self.context.stop.requested:
                raise Interrupted(self.state.step)
            log_update(self.task, self.state, self.stream, self.log)
        self.log.flush()

    def bare(self, first: int, steps: int) -> None:
        """Nothing here waits for the GPU."""
        model, optimizer, training = self.state.model, self.state.optimizer, self.task.training
        for step in range(first, first + steps):
            token_losses(model, self.tokens(step)).mean().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip_norm)
            set_learning_rate(optimizer, learning_rate(training, step))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def tokens(self, step: int) -> Tensor:
        batch = torch.from_numpy(self.stream.batch(step)).to(torch.int64)
        return batch.pin_memory().to("cuda", non_blocking=True) if self.context.device.type == "cuda" else batch


def task_context(task: Train, corpus: Corpus, device: torch.device, directory: Path) -> TaskContext:
    """Over a run directory as the engine prepares it."""
    job = Job(task=task, device="auto", label="run", role=Role(design="scratch", arm="baseline"))
    save_run_file(directory, RunFile(key="k", job=job, environment=ENVIRONMENT, outcome=Outcome(status="running")))
    return TaskContext(job, directory, None, RunWriter(directory), device, corpus, StopSignal())


class _NotCounted(Passes):
    def count(self, inner: object, wanted: bool) -> None:
        pass


@contextmanager
def not_counting(model: nn.Module) -> Iterator[None]:
    """Layers over Transformer Engine do not ask after each pass whether it was in FP8."""
    modules: Iterable[Any] = model.modules()
    before = [(module, module._passes) for module in modules if isinstance(getattr(module, "_passes", None), Passes)]
    for module, _ in before:
        module._passes = _NotCounted()
    try:
        yield
    finally:
        for module, passes in before:
            module._passes = passes


@dataclass(frozen=True)
class Turns:
    """Seconds of the turns of both, by round."""

    steps: int
    ours: list[float]
    bare: list[float]

    def in_words(self, tokens_per_step: int) -> str:
        ours, bare = (self.steps * tokens_per_step / median(seconds) for seconds in (self.ours, self.bare))
        low, middle, high = spread([other / own for own, other in zip(self.ours, self.bare, strict=True)])
        rates = f"{ours:,.0f} tokens/s, bare {bare:,.0f}: {middle:.3f} x bare ({low:.3f} to {high:.3f})"
        return f"{rates}, {len(self.ours)} rounds of {self.steps} steps"


def in_turns(arm: Arm, rounds: int = _ROUNDS, turn_seconds: float = _SECONDS_PER_TURN) -> Turns:
    """Who goes first changes from round to round."""
    one_round(arm, _WARM_UP)
    steps = max(1, round(turn_seconds * _WARM_UP / min(one_round(arm, _WARM_UP))))
    seconds = [one_round(arm, steps, bare_first=number % 2 == 1) for number in range(rounds)]
    return Turns(steps, [ours for ours, _ in seconds], [bare for _, bare in seconds])


def one_round(arm: Arm, steps: int, bare_first: bool = False) -> tuple[float, float]:
    """Seconds of ours and of the bare loop over the same batches."""
    first = arm.state.step

    def bare() -> float:
        with not_counting(arm.state.model):
            return timed(arm, lambda: arm.bare(first, steps))

    if bare_first:
        seconds = bare()
        return timed(arm, lambda: arm.ours(steps)), seconds
    return timed(arm, lambda: arm.ours(steps)), bare()


def timed(arm: Arm, turn: Callable[[], None]) -> float:
    synchronize(arm.context.device)
    started = time.perf_counter()
    turn()
    synchronize(arm.context.device)
    return time.perf_counter() - started


def measure(size: Size, precision: Precision, corpus: Corpus, device: torch.device) -> str:
    if precision.backend == "transformer_engine":
        # Else it goes on moving the scales of the model before: it keeps them by recipe.
        import_transformer_engine().quantization.FP8GlobalStateManager.reset()
    with tempfile.TemporaryDirectory() as folder:
        arm = Arm(size, precision, corpus, device, Path(folder))
        return in_turns(arm).in_words(arm.task.training.tokens_per_step)


def run() -> Rows:
    make_deterministic(torch.get_num_threads())
    device = choose_device("auto")
    yield "device, threads", f"{device}, {torch.get_num_threads()}"
    corpus = load_corpus(PythonSourceData())
    for name, size in sizes(device).items():
        for arm, precision in arms(device).items():
            yield f"{name}: {arm}", precision if isinstance(precision, str) else measure(size, precision, corpus, device)
            free(device)
