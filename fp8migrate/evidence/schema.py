"""What checks look at: a Comparison of paired runs, and the findings of the baseline and integration phases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.advice import Advice
from fp8migrate.facts.kernels import KernelKind
from fp8migrate.facts.operands import Gemm
from fp8migrate.jobs import Arm, DesignName, Forward
from fp8migrate.plan.audit import AuditRow
from fp8migrate.plan.policy import EvidenceName
from fp8migrate.plan.schema import NAMED_MARGINS
from fp8migrate.records.schema import Conversion, Environment, Outcome, Series
from fp8migrate.statistics.noninferiority import Bounds, bounds, welch_bounds

# validation_loss: held-out loss under a BF16 forward: learned quality. validation_loss_fp8: the candidate under its FP8
# forward against the baseline under BF16: what a model served in FP8 shows. training_loss: as logged, each arm under its own
# forward. forward_penalty: the candidate's weights, FP8 forward against BF16 forward (PARITY.md 1 and 3).
# logged_validation_loss: as somebody's log has it; under which forward it was measured is not known.
Endpoint = Literal["validation_loss", "validation_loss_fp8", "logged_validation_loss", "training_loss", "forward_penalty"]

# Those in which the FP8 forward's own penalty may stand beside lost quality (PARITY.md 3).
AS_LOGGED: tuple[Endpoint, ...] = ("logged_validation_loss", "training_loss")


@dataclass(frozen=True)
class Delta:
    """One pair at one endpoint. value = (candidate - baseline) / baseline; losses in nats per token."""

    pair: int
    baseline: float
    candidate: float

    @property
    def value(self) -> float:
        return (self.candidate - self.baseline) / self.baseline


@dataclass(frozen=True)
class Cell:
    """All pairs of one arm against the baseline, at one endpoint and one fraction.

    sampling_error: document-clustered standard error of the mean relative gap, from the held-out documents (PARITY.md 4,
    s_val); None where documents are unknown or the endpoint has none (then it counts as 0 and the report says so).
    groups: losses of the baseline's and of the candidate's runs where no run belongs to one of the other arm. `deltas` then
    has each candidate run against the baseline's mean: to be shown, not to be counted as pairs.
    """

    arm: Arm
    endpoint: Endpoint
    fraction: float | None
    deltas: tuple[Delta, ...]
    sampling_error: float | None
    groups: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def values(self) -> NDArray[np.float64]:
        return np.array([d.value for d in self.deltas], dtype=np.float64)

    @property
    def finite(self) -> bool:
        """Whether there is anything to judge, and all of it is a number."""
        return bool(self.deltas) and bool(np.isfinite(self.values).all())

    @property
    def bounds(self) -> Bounds:
        """Of the mean gap: over pairs, or by Welch over unpaired groups. Only of a `finite` cell."""
        if self.groups is not None:
            return welch_bounds(*self.groups)
        return bounds(self.values, self.sampling_error or 0.0)

    @property
    def unit(self) -> str:
        """What it counts: `pair`, or `run` of the smaller group."""
        return "pair" if self.groups is None else "run"


@dataclass(frozen=True, eq=False)
class PairCurves:
    """Training-loss curves of one pair, on the steps as logged. first_step: updates done before the pair starts."""

    arm: Arm
    pair: int
    fraction: float | None
    baseline: Series
    candidate: Series
    first_step: int = 0


@dataclass(frozen=True)
class Growth:
    """How much further apart the same pairs are over 4K steps than over K: value = gap(4K) − gap(K), one for each pair.

    sampling_error: of the mean, from the held-out documents; None where either gap's is unknown.
    """

    endpoint: Endpoint
    pairs: tuple[int, ...]
    values: tuple[float, ...]
    sampling_error: float | None


@dataclass(frozen=True)
class RunFact:
    """How one run of the comparison ended. `expected_last_step` against `outcome.last_step` tells a cut run.

    non_finite_at: first step at which a training loss, gradient norm or validation loss was NaN or Inf. missing_steps:
    steps without a logged loss up to the last that was reached, where every step should have one. constant_loss: the loss
    never changed; zero_gradients: the gradient norm was 0 at every step. final_loss: robust mean of the final window.
    validated: forwards under which the last step was validated.
    """

    arm: Arm
    pair: int
    fraction: float | None
    label: str
    key: str
    outcome: Outcome | None
    expected_last_step: int
    directory: str
    non_finite_at: int | None = None
    missing_steps: int = 0
    constant_loss: bool = False
    zero_gradients: bool = False
    final_loss: float | None = None
    validated: tuple[Forward, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class Obstacle:
    """Why finished runs cannot be compared as they are. code: of the ranked table."""

    code: str
    what: str


@dataclass(frozen=True)
class Efficiency:
    """One measure of both arms that tells what FP8 costs or saves, a number for each run. ratio: candidate / baseline.

    metric: speed (tokens, samples or steps a second), memory (peak bytes), grad_norm (median over the final window).
    bounds: one-sided, of the ratio. within: the interval is of blocks within one run, since an arm has only one.
    excluded: which steps were left out, in words.
    """

    metric: Literal["speed", "memory", "grad_norm"]
    measure: str
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    bounds: Bounds
    within: bool
    excluded: str = ""


@dataclass(frozen=True, eq=False)
class Groups:
    """What a comparison of finished runs has beyond that of runs that we started.

    pairing: as the noise of the losses tells it (statistics.pairing). sizes: runs of baseline and candidate. axis: what the
    x values count. forward_penalty: as the user knows it; None: not known. margins: of endpoints that have one of their own.
    gross_spikes: of the candidate alone, (run, step), where the loss more than doubled. wild_ends: (run, gap) where the last
    1 % of the points lies far from the baseline. not_learned: of each baseline run, why it did not. no_fp8: what the
    candidate's configuration says against FP8. growths: of each run's loss between 50–60 % and the last 10 % of the run, as a
    difference of logarithms, by arm. spikes: of the baseline's and of the candidate's runs. requires: evidence without which
    the policy lets nothing pass. limits: of speed, memory, grad_norm and worth_it, where they gate. notes: what was done to
    bring the logs together.
    """

    pairing: Literal["pairs", "shared", "unpaired", "unknown"]
    sizes: tuple[int, int]
    axis: str
    forward_penalty: float | None
    margins: Mapping[Endpoint, float]
    obstacles: tuple[Obstacle, ...] = ()
    notes: tuple[str, ...] = ()
    gross_spikes: tuple[tuple[str, float], ...] = ()
    wild_ends: tuple[tuple[str, float], ...] = ()
    not_learned: tuple[tuple[str, str], ...] = ()
    no_fp8: str = ""
    efficiency: tuple[Efficiency, ...] = ()
    growths: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    spikes: tuple[int, int] = (0, 0)
    requires: tuple[EvidenceName, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def paired(self) -> bool:
        return self.pairing == "pairs"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Paired runs of one design, ready to be judged.

    fractions: the design's starts, (None,) where it has a single one. planned_pairs: per fraction. runs: one entry per
    planned run, also those that are missing (outcome None). audit: baseline against candidate, each setting.
    identical_pairs: pairs whose candidate training losses equal the baseline's bit for bit at every step.
    step_digits: least number of significant digits that the losses were logged with; None for full precision.
    data_passes: most often that any run saw its training text (1.0: once).
    primary: the endpoints that decide: validation_loss (and validation_loss_fp8 where the model is served in FP8), or
    training_loss where the runs validate nothing. uniform_loss: of a model that knows nothing, nats per token.
    first_step, last_step: of the last fraction's runs; tokens: that each run trained on.
    Of a long screen alone: growth: of its gaps over those of the screen, at each primary endpoint; floor_curves: the screen's
    floor pairs at the same start, since it runs no floor of its own. groups: of finished runs of others alone.
    """

    design: DesignName
    margin: float
    serve: Literal["bf16", "fp8"]
    serve_margin: float
    require_fp8: bool
    planned_pairs: int
    planned_sensitivity: bool
    fractions: tuple[float | None, ...]
    cells: tuple[Cell, ...]
    curves: tuple[PairCurves, ...]
    runs: tuple[RunFact, ...]
    audit: tuple[AuditRow, ...]
    conversion: Conversion | None
    environment: Environment | None
    emulated: bool
    identical_pairs: int
    data_passes: float
    step_digits: int | None = None
    recipe: str = ""
    model: str = ""
    tokens: int = 0
    decayed: bool = True
    primary: tuple[Endpoint, ...] = ("validation_loss",)
    uniform_loss: float | None = None
    first_step: int = 0
    last_step: int = 0
    growth: tuple[Growth, ...] = ()
    floor_curves: tuple[PairCurves, ...] = ()
    groups: Groups | None = None

    def margin_of(self, endpoint: Endpoint) -> float:
        """serve_margin for what a model served in FP8 shows, else the margin (PARITY.md 3)."""
        if self.groups and endpoint in self.groups.margins:
            return self.groups.margins[endpoint]
        served = endpoint == "validation_loss_fp8" or (endpoint in AS_LOGGED and self.serve == "fp8")
        return self.serve_margin if served else self.margin

    def cell(self, arm: Arm, endpoint: Endpoint, fraction: float | None) -> Cell | None:
        return next((c for c in self.cells if (c.arm, c.endpoint, c.fraction) == (arm, endpoint, fraction)), None)


@dataclass(frozen=True)
class LayerAgreement:
    """One module's output or one parameter's gradient, BF16 against FP8, on the same weights and batch."""

    name: str
    sqnr_db: float
    cosine: float
    reference_norm: float
    fp8_norm: float
    finite: bool


@dataclass(frozen=True)
class GemmAgreement(LayerAgreement):
    """One GEMM of one layer by itself: the same operands in FP8 and in BF16. forecast_db: SQNR as the advisor foretold it."""

    layer: str
    gemm: Gemm
    forecast_db: float | None = None


@dataclass(frozen=True)
class LayerKernels:
    """GEMM kernels that ran in a converted layer's three GEMMs, by name; asked: how many should have been in low precision.

    forward_again: a training step recomputes the layer, so its forward GEMM runs twice.
    """

    layer: str
    asked: int
    low_precision_gemms: int
    other_gemms: int
    unknown_gemms: int
    names: tuple[str, ...]
    forward_again: bool = False


@dataclass(frozen=True)
class StepKernel:
    """A kernel of one training step. microseconds: on the GPU, over all its calls."""

    name: str
    kind: KernelKind
    calls: int
    microseconds: float


@dataclass(frozen=True)
class LogitAgreement:
    """Next-token distributions on held-out tokens. kl_nats: mean KL(BF16 || FP8). penalty: relative loss difference."""

    kl_nats: float
    top1_agreement: float
    loss_bf16: float
    loss_fp8: float
    tokens: int

    @property
    def penalty(self) -> float:
        return (self.loss_fp8 - self.loss_bf16) / self.loss_bf16


@dataclass(frozen=True, eq=False)
class IntegrationEvidence:
    """What phase 2 found on one checkpoint. Empty or None: it was not measured.

    resume_mismatches, accumulation_error: save-load-step against not having stopped (names of tensors that differ in any
    bit), and N microbatches against one batch (relative error of the whole gradient; the same in BF16 beside it).
    layer_kernels, step_kernels: what a GPU ran; micro_batches: of the profiled step.
    """

    runs: tuple[RunFact, ...]
    conversion: Conversion | None
    logits: LogitAgreement | None
    outputs: tuple[LayerAgreement, ...] = ()
    gradients: tuple[LayerAgreement, ...] = ()
    layers: tuple[GemmAgreement, ...] = ()
    resume_mismatches: tuple[str, ...] | None = None
    accumulation_error: float | None = None
    accumulation_error_bf16: float | None = None
    require_fp8: bool = True
    emulated: bool = False
    layer_kernels: tuple[LayerKernels, ...] = ()
    step_kernels: tuple[StepKernel, ...] = ()
    micro_batches: int = 1


@dataclass(frozen=True, eq=False)
class BaselineEvidence:
    """What phase 1 found: the BF16 run(s), the floor at full size, convergence, speed and memory.

    tokens_to_loss: (loss, tokens at which the smoothed training loss first fell below it). margin: of the plan, which the floor
    is told against. advice: from the run's tensors; None where none were sampled.
    """

    runs: tuple[RunFact, ...]
    loss: Series | None
    grad_norm: Series | None
    final_validation_loss: float | None
    initial_validation_loss: float | None
    uniform_loss: float
    floor: tuple[Delta, ...] = ()
    spikes: int = 0
    tokens_to_loss: tuple[tuple[float, int], ...] = ()
    tokens_per_second: float | None = None
    peak_memory_bytes: int | None = None
    data_passes: float = 1.0
    extra: dict[str, float] = field(default_factory=dict)
    margin: float = NAMED_MARGINS["standard"]
    advice: Advice | None = None
