"""The plan's models. Every key is described here once; the messages, the starting plan and the README quote it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.facts.recipes import KNOWN_BAD, DelayedRecipe, Recipe
from fp8migrate.settings import InconsistentError, Settings

Fraction = Annotated[float, Field(gt=0, lt=1)]
Serve = Literal["bf16", "fp8"]
LearningRateRule = Literal["inverse_width", "keep"]
OddShapes = Literal["keep", "pad"]
Modules = Literal["linear", "fused"]

# PARITY.md 3: non-inferiority margins as relative gaps. "standard" is DeepSeek-V3's published bound (0.25 %).
NAMED_MARGINS = {"standard": 0.0025, "strict": 0.0010, "fp4": 0.010}

# PARITY.md 4: no verdict PASS on fewer pairs, and a FAIL by the gap needs at least two.
MIN_PAIRS_TO_PASS = 4


# PARITY.md 5: one fraction of a screen also runs this many times as long.
LONG_SCREEN_FACTOR = 4


class BuiltinTrainer(Settings):
    """The trainer that comes with fp8migrate."""

    kind: Literal["builtin"] = Field("builtin", description="the trainer that comes with fp8migrate")


class LlamaModel(Settings):
    """A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Tokens are bytes."""

    kind: Literal["llama"] = Field("llama", description="RMSNorm, rotary positions, grouped-query attention, SwiGLU")
    num_layers: int = Field(ge=1, description="decoder layers")
    hidden_size: int = Field(ge=16, description="width of the residual stream")
    num_heads: int = Field(ge=1, description="attention heads; divides hidden_size")
    num_kv_heads: int = Field(ge=1, description="key and value heads; divides num_heads")
    ffn_hidden_size: int = Field(ge=16, description="inner width of the SwiGLU feed-forward")
    vocab_size: int = Field(256, ge=256, description="tokens are bytes, so 256 or more")
    rope_theta: float = Field(10000.0, gt=0, description="base of the rotary positions' wavelengths")
    norm_epsilon: float = Field(1e-5, gt=0, description="added to the mean square in RMSNorm")
    init_std: float = Field(0.02, gt=0, description="standard deviation of the initial weights")

    @model_validator(mode="after")
    def heads_divide(self) -> Self:
        problems = {}
        if self.hidden_size % self.num_heads:
            problems["hidden_size"] = f"{self.hidden_size} is not a multiple of num_heads {self.num_heads}"
        elif self.head_size % 2:
            problems["hidden_size"] = (
                f"hidden_size / num_heads = {self.head_size} is odd; rotary positions need an even head size"
            )
        if self.num_heads % self.num_kv_heads:
            problems["num_kv_heads"] = f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
        if problems:
            raise InconsistentError(problems)
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads


class PythonSourceData(Settings):
    """The Python standard library's own source text as bytes: real text on every machine, no download."""

    kind: Literal["python_source"] = Field("python_source", description="Python's own standard library, no download")
    validation_tokens: int = Field(65536, ge=1024, description="held-out tokens per evaluation")


class Training(Settings):
    """One schedule for every arm: linear warm-up, then cosine to min_learning_rate_ratio at num_steps."""

    num_steps: int = Field(ge=1, description="optimizer steps of the whole schedule")
    sequence_length: int = Field(ge=8, description="tokens per sequence")
    micro_batch_size: int = Field(ge=1, description="sequences per forward pass")
    global_batch_size: int = Field(ge=1, description="sequences per optimizer step; a multiple of micro_batch_size")
    learning_rate: float = Field(gt=0, description="AdamW's peak rate, reached after the warm-up")
    min_learning_rate_ratio: float = Field(0.1, ge=0, le=1, description="the rate at num_steps as a share of the peak")
    warmup_steps: int = Field(ge=0, description="steps of linear warm-up; below num_steps")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the gradient's mean")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW: decay of the gradient's mean square")
    epsilon: float = Field(1e-8, gt=0, description="AdamW: added to the root of the mean square")
    weight_decay: float = Field(0.1, ge=0, description="AdamW: decoupled decay of the weights")
    grad_clip_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this global norm")
    seed: int = Field(1234, ge=0, description="of the initial weights and the data order")
    recompute: bool = Field(
        False, description="decoder layers keep no activations: the backward pass runs their forward once more"
    )

    @model_validator(mode="after")
    def consistent(self) -> Self:
        problems = {}
        if self.global_batch_size % self.micro_batch_size:
            problems["global_batch_size"] = (
                f"{self.global_batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}"
            )
        if self.warmup_steps >= self.num_steps:
            problems["warmup_steps"] = f"{self.warmup_steps} must be below num_steps {self.num_steps}"
        if problems:
            raise InconsistentError(problems)
        return self

    def step_at(self, fraction: float) -> int:
        """The step of the schedule at a fraction of it; at least one step from either end."""
        return min(max(1, round(fraction * self.num_steps)), max(1, self.num_steps - 1))

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length


class PolicyRule(Settings):
    """Another recipe for some layers, or for some of their GEMMs. Of rules that overlap the later one holds."""

    layers: str = Field(
        min_length=1,
        description="head, first_layer, last_layer, attention, mlp, or a name pattern (layers.*.mlp.down)",
        examples=["layers.*.mlp.down"],
    )
    gemms: tuple[Gemm, ...] = Field(GEMMS, min_length=1, description="which of forward, data_gradient, weight_gradient")
    recipe: Recipe = Field(description="how they are scaled; kind bf16 leaves them in BF16", examples=[{"kind": "bf16"}])

    @property
    def in_words(self) -> str:
        """`layers.*.mlp.down: bf16 for weight_gradient`."""
        gemms = "" if set(self.gemms) == set(GEMMS) else f" for {', '.join(self.gemms)}"
        return f"{self.layers}: {self.recipe.kind}{gemms}"


class Candidate(Settings):
    """The FP8 configuration under test."""

    backend: Literal["auto", "emulated", "transformer_engine", "torchao"] = Field(
        "auto", description="auto: the recipe's library on a GPU with FP8, else emulated"
    )
    recipe: Recipe = Field(default_factory=DelayedRecipe, description="how tensors are scaled into FP8")
    keep_bf16: tuple[str, ...] = Field(
        ("lm_head",),
        description="in BF16: head, first_layer, last_layer, attention, mlp, norms, embeddings, or names (layers.*.mlp.down)",
    )
    keep_smaller_than: int | None = Field(
        None, ge=1, description="layers of the model with fewer weights (out x in) stay in BF16; null: none for its size"
    )
    keep_advised: bool = Field(
        False, description="layers that the advisor judges unfit for their recipe, from the BF16 run, stay in BF16"
    )
    odd_shapes: OddShapes = Field(
        "keep", description="shapes that FP8 GEMMs do not take: keep in BF16, or pad with zeros to the next that they do"
    )
    policy: tuple[PolicyRule, ...] = Field((), description="exceptions from the recipe, by layer and by GEMM")
    modules: Modules = Field(
        "linear", description="exchange linear layers, or whole decoder layers for Transformer Engine's fused modules"
    )

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Every recipe that some layer may have."""
        return (self.recipe, *(rule.recipe for rule in self.policy))


class ScreenDesign(Settings):
    """Short cooled branches from several fractions of a BF16 trunk. Can convict, never acquit (PARITY.md 2).

    Where the plan has no longer pairs, one fraction also runs 4K steps, to see whether the gap grows (PARITY.md 5).
    """

    fractions: tuple[Fraction, ...] = Field(
        (0.3, 0.6, 0.9), min_length=1, description="of the BF16 trunk where screens start; rising"
    )
    num_steps: int = Field(150, ge=1, description="K: steps of each screen; the learning rate cools to zero over them")
    data_orders: int = Field(4, ge=2, le=64, description="pairs per fraction")

    @model_validator(mode="after")
    def rising(self) -> Self:
        if list(self.fractions) != sorted(set(self.fractions)):
            raise InconsistentError({"fractions": "must rise, each named once"})
        return self

    @property
    def long_fraction(self) -> float:
        """The fraction that also runs 4K: the middle one, of two the earlier.

        Early pairs scatter too much for four of them to bound the growth below half a margin (PARITY.md 1: SD 0.03 to 0.33 %
        at a sixth of the run, 0.01 to 0.02 % at half of it); at the last fraction little learning rate is left to drift with.
        """
        return self.fractions[(len(self.fractions) - 1) // 2]


class BranchDesign(Settings):
    """Pairs that start from one BF16 checkpoint and run to the end of the schedule. PASS: from that checkpoint on."""

    at: Fraction = Field(0.5, description="fraction of the plan's own BF16 trunk to start from")
    pairs: int = Field(4, ge=1, le=64, description="BF16 and FP8 runs from that checkpoint; a PASS needs 4")


class ScratchDesign(Settings):
    """Pairs that start from the initial weights and run the whole schedule."""

    pairs: int = Field(5, ge=1, le=64, description="BF16 and FP8 runs from the initial weights; a PASS needs 4")


class Design(Settings):
    """Which pairs are run. A screen may stand before either design; a branch or scratch design is what can PASS."""

    screen: ScreenDesign | None = Field(None, description="short branches of a BF16 run: convict cheaply")
    branch: BranchDesign | None = Field(None, description="pairs from a BF16 checkpoint; excludes scratch")
    scratch: ScratchDesign | None = Field(None, description="pairs from the initial weights; excludes branch")
    sensitivity: Recipe = Field(KNOWN_BAD, description="the recipe known to be bad that the design must convict")
    floor_pairs: int = Field(4, ge=2, le=64, description="BF16 pairs one ulp apart: the noise floor")
    control_pairs: int = Field(1, ge=1, le=64, description="pairs of the candidate's modules with FP8 off")

    @model_validator(mode="after")
    def one_of(self) -> Self:
        if self.branch and self.scratch:
            raise InconsistentError({"scratch": "branch and scratch exclude each other: choose one"})
        if not (self.screen or self.branch or self.scratch):
            raise InconsistentError({"": "a design needs at least one of screen, branch, scratch"})
        return self

    @property
    def long_screen(self) -> ScreenDesign | None:
        """The screen of which one fraction also runs 4K, where it is the last word: longer pairs tell more about drift."""
        return None if self.branch or self.scratch else self.screen


class Parity(Settings):
    """How good is good enough. Fixed before the run; part of the report's hash (PARITY.md 3)."""

    margin: Literal["standard", "strict", "fp4"] | Annotated[float, Field(gt=0, lt=0.5)] = Field(
        "standard",
        description="largest acceptable relative loss gap: standard 0.25 %, strict 0.10 %, fp4 1.0 %, or a fraction (0.005)",
    )
    serve: Serve = Field(
        "bf16", description="precision in which the model will be served; fp8 makes the FP8 forward primary too"
    )
    serve_margin: Annotated[float, Field(gt=0, lt=0.5)] | None = Field(
        None, description="margin of the FP8-forward endpoint under serve: fp8; the margin itself where absent"
    )
    require_fp8: bool = Field(
        True, description="false accepts a candidate without FP8: for A/A tests only, said in the headline"
    )

    @property
    def margin_fraction(self) -> float:
        return NAMED_MARGINS[self.margin] if isinstance(self.margin, str) else self.margin

    @property
    def serve_margin_fraction(self) -> float:
        return self.margin_fraction if self.serve_margin is None else self.serve_margin


class Budget(Settings):
    """What the plan may cost. Does not change any result."""

    gpu_hours: float | None = Field(None, gt=0, description="refuse to start a plan estimated to cost more than this")


class Advisor(Settings):
    """Tensors of the BF16 run are quantised under every recipe: a forecast that needs no FP8 hardware, and never a verdict.

    Takes less than asked for where it would cost more than 2 % of the run; one sample at least.
    """

    samples: int = Field(4, ge=0, le=64, description="updates whose tensors are looked at; 0: no advice")
    max_tokens: int = Field(512, ge=128, le=8192, description="rows of each tensor that are looked at")
    recipes: tuple[Recipe, ...] = Field(
        (), description="further recipes to forecast, beside the usual ones and the candidate's"
    )


class BaselinePhase(Settings):
    """The plan's model in BF16."""

    advisor: Advisor = Field(Advisor(), description="what each recipe would lose of the BF16 run's tensors")


class SmallScalePhase(Settings):
    """The plan's model shrunk, so that pairs of whole runs are affordable."""

    shrink: float = Field(10.0, ge=1, description="divide the parameters by this, shape kept; 1 runs the model as it is")
    learning_rate_rule: LearningRateRule = Field(
        "inverse_width", description="of the shrunk model: the plan's rate × width / shrunk width, or the plan's rate"
    )


class Phases(Settings):
    """Settings of the phases."""

    baseline: BaselinePhase = Field(BaselinePhase(), description="the model in BF16, and advice from its tensors")
    small_scale: SmallScalePhase = Field(SmallScalePhase(), description="pairs of a shrunk model")


class Launch(Settings):
    """Where and how jobs run."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU where there is one")
    threads_per_job: int = Field(
        1, ge=1, le=256, description="CPU threads of one job; part of what makes runs repeat bit for bit"
    )
    max_parallel: int | None = Field(
        None, ge=1, le=256, description="jobs at once; absent: cores / threads_per_job, one per GPU"
    )
    stall_timeout_seconds: float = Field(600, ge=1, description="stop a job that logs nothing for this long")


class Plan(Settings):
    """One plan, one question. Everything a run depends on stands here."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="reports go to reports/<name>/",
        json_schema_extra={"expected": "1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"},
    )
    trainer: BuiltinTrainer = Field(BuiltinTrainer(), description="what trains")
    model: LlamaModel = Field(description="what is trained")
    data: PythonSourceData = Field(PythonSourceData(), description="what it is trained on")
    training: Training = Field(description="how long and how; the same for every arm")
    candidate: Candidate = Field(Candidate(), description="the FP8 configuration under test")
    design: Design = Field(description="which pairs of BF16 and FP8 runs")
    parity: Parity = Field(Parity(), description="how good is good enough")
    budget: Budget = Field(Budget(), description="what it may cost")
    phases: Phases = Field(Phases(), description="settings of the phases")
    launch: Launch = Field(Launch(), description="where and how jobs run")

    @model_validator(mode="after")
    def consistent(self) -> Self:
        problems = {}
        screen, branch, need = self.design.screen, self.design.branch, steps_needed(self)
        why = f"is too short for this recipe{_longest_rule(self)} and optimizer: it needs"
        rule = "(the larger of 2 x amax_history_len and 3 / (1 - beta2))"
        if screen is not None and screen.num_steps < need:
            problems["design.screen.num_steps"] = f"{screen.num_steps} {why} {need} {rule}"
        if branch is not None and (left := self.training.num_steps - self.training.step_at(branch.at)) < need:
            problems["design.branch.at"] = f"{branch.at:g} leaves {left} steps, which {why} {need} {rule}"
        if self.candidate.recipe.kind == "bf16" and self.parity.require_fp8:
            problems["candidate.recipe"] = "bf16 is an A/A test: say parity.require_fp8: false, or choose an FP8 recipe"
        if self.candidate.recipe.kind == "bf16" and self.candidate.policy:
            problems["candidate.policy"] = "has no place in an A/A test: choose an FP8 recipe, and name its exceptions"
        if self.candidate.keep_advised and self.phases.baseline.advisor.samples == 0:
            problems["candidate.keep_advised"] = "needs the advisor: say phases.baseline.advisor.samples: 1 or more"
        if self.candidate.recipe.kind == "bf16" and self.parity.serve == "fp8":
            problems["parity.serve"] = "fp8 cannot be judged in an A/A test, which has no FP8 forward: say bf16"
        if problems:
            raise InconsistentError(problems)
        return self


def _longest_rule(plan: Plan) -> str:
    """` (policy rule layers.*: delayed)` where a rule's recipe looks back furthest."""
    own = plan.candidate.recipe.history_length
    longest = max(plan.candidate.policy, key=lambda rule: rule.recipe.history_length, default=None)
    return f" (policy rule {longest.in_words})" if longest and longest.recipe.history_length > own else ""


def steps_needed(plan: Plan) -> int:
    """K that a screen or a branch needs at least: in a shorter run the recipe's effect is not in the window (PARITY.md 2)."""
    history = max(recipe.history_length for recipe in plan.candidate.recipes)
    # The quotient is rounded before the ceiling: 3 / (1 - 0.95) is 60.00000000000005 in binary.
    return max(2 * history, -int(-round(3 / (1 - plan.training.beta2), 6) // 1))
