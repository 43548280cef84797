"""Tasks and jobs: what a worker is asked to do, self-contained, so that a digest of it names its result."""

import hashlib
from typing import Annotated, Literal

import orjson
from pydantic import Field

from fp8migrate.facts.recipes import Recipe
from fp8migrate.plan.schema import LlamaModel, Modules, OddShapes, PolicyRule, PythonSourceData, Training
from fp8migrate.settings import Settings

Arm = Literal["baseline", "control", "candidate", "floor", "sensitivity"]
# groups: finished runs that somebody else started, judged from their logs; items: from their item evaluations alone.
DesignName = Literal["baseline", "integration", "screen", "long_screen", "branch", "scratch", "groups", "items"]
Forward = Literal["bf16", "fp8"]


class Precision(Settings):
    """What executes the linear layers and in which precision. backend bf16 is the plain BF16 module."""

    backend: Literal["bf16", "emulated", "transformer_engine", "torchao"] = "bf16"
    recipe: Recipe | None = Field(None, description="none on an FP8 backend: its modules with FP8 switched off (control)")
    keep_bf16: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = Field(
        (), description="further layers in BF16, by name, and why: what size and advice came to for this model"
    )
    policy: tuple[PolicyRule, ...] = ()
    odd_shapes: OddShapes = "keep"
    modules: Modules = "linear"
    stand_in: Recipe | None = Field(
        None, description="sensitivity: goes where the others would be in low precision, GEMM by GEMM, and nowhere else"
    )

    @property
    def low_precision_recipes(self) -> tuple[Recipe, ...]:
        """Those that some layer may have; none in BF16 and with FP8 switched off."""
        if self.recipe is None:
            return ()
        named = (self.recipe, *(rule.recipe for rule in self.policy)) if self.stand_in is None else (self.stand_in,)
        return tuple(recipe for recipe in named if recipe.kind != "bf16")

    @property
    def has_history(self) -> bool:
        """Whether some scale looks back on earlier passes, so that it must be warmed."""
        return any(recipe.kind == "delayed" for recipe in self.low_precision_recipes)


class Cooldown(Settings):
    """The learning rate falls linearly from its value at `start` to zero at `start + num_steps` (PARITY.md 2, screens)."""

    start: int = Field(ge=0)
    num_steps: int = Field(ge=1)


class DataOrder(Settings):
    """Which windows a run sees, in which order. `trunk` and `unseen` are disjoint halves of the training text."""

    split: Literal["trunk", "unseen"] = "trunk"
    seed: int = Field(ge=0)


class TensorStats(Settings):
    """Look at the tensors of every linear layer during some updates: what each recipe would lose of them. Changes no result."""

    steps: tuple[int, ...] = Field(
        min_length=1, description="updates, counted from 1, in whose first micro-batch rows are taken"
    )
    recipes: tuple[Recipe, ...] = Field(min_length=1, description="recipes under which they are quantised")
    max_tokens: int = Field(ge=1, description="rows of each tensor that are looked at: the first ones")


class Train(Settings):
    """Train from `first_step` (0, or the step of the job's start checkpoint) to `last_step`."""

    kind: Literal["train"] = "train"
    model: LlamaModel
    data: PythonSourceData
    training: Training
    precision: Precision
    data_order: DataOrder
    first_step: int = Field(0, ge=0)
    last_step: int = Field(ge=1)
    cooldown: Cooldown | None = None
    one_ulp: int | None = Field(
        None, ge=0, description="floor: seed of the random signs by which every weight moves one ulp at the start"
    )
    warm_amax_batches: int = Field(0, ge=0, description="forward-backward passes without an update before the first step")
    validate_at: tuple[int, ...] = Field((), description="steps after which the held-out loss is measured")
    validate_forwards: tuple[Forward, ...] = ("bf16",)
    checkpoint_at: tuple[int, ...] = Field((), description="steps whose checkpoints are kept")
    resume_every: int = Field(100, ge=1, description="steps between checkpoints that a killed run resumes from")
    tensor_stats: TensorStats | None = Field(None, description="the advisor's samples; of the phase baseline's BF16 run alone")


class ForwardCheck(Settings):
    """Same weights, same held-out batch, BF16 forward against FP8 forward: logits and per-layer outputs."""

    kind: Literal["forward_check"] = "forward_check"
    model: LlamaModel
    data: PythonSourceData
    training: Training
    precision: Precision
    data_order: DataOrder = Field(description="of the passes that fill amax histories before anything is measured")


class OneStep(Settings):
    """Same weights, same batch, one training step both ways: gradients per parameter, resume and accumulation equality."""

    kind: Literal["one_step"] = "one_step"
    model: LlamaModel
    data: PythonSourceData
    training: Training
    precision: Precision
    data_order: DataOrder


class MeasuredArm(Settings):
    """One way to run the training step whose speed is measured. Precision bf16: torch alone, every layer compiled."""

    name: str
    precision: Precision
    attention: Literal["transformer_engine", "torch"] = Field("transformer_engine", description="of fused modules")
    rotation: Literal["compiled", "transformer_engine"] = Field("compiled", description="of fused modules: rotary positions")


class Measure(Settings):
    """Measure the whole training step of several arms in one process, over one set of weights, in turns."""

    model: LlamaModel
    training: Training
    arms: tuple[MeasuredArm, ...] = Field(min_length=1)
    rounds: int = Field(3, ge=1, description="times that every arm has its turn")
    steps: int = Field(5, ge=1, description="steps of one turn")
    warm_up: int = Field(3, ge=1, description="steps of each arm before the first round, timed apart")
    levers: bool = Field(True, description="also time optimizers, attention and GEMMs by themselves")
    seconds: float = Field(540, gt=0, description="no round is begun after so long")
    device: Literal["auto", "cpu", "cuda"] = "auto"


Task = Annotated[Train | ForwardCheck | OneStep, Field(discriminator="kind")]


class CheckpointRef(Settings):
    """The checkpoint that another job leaves after `step` updates."""

    job: str = Field(description="digest of the job")
    step: int = Field(ge=0)


class Role(Settings):
    """What a job is in a comparison. Not part of the job's digest: one result may serve several roles."""

    design: DesignName
    arm: Arm
    pair: int = Field(0, ge=0, description="pairs share start and data order between their arms")
    fraction: float | None = Field(None, description="of the trunk where the pair starts; none where the design has one start")


class Job(Settings):
    """One task as one process tree. Jobs form a DAG through `start`; the digest covers all that a result depends on."""

    task: Task
    start: CheckpointRef | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(1, ge=1)
    label: str = Field(description="for people and folder names: small_scale-branch-p2-candidate")
    role: Role

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over task, start, device and threads; label and role do not change a result."""
        content = self.model_dump(mode="json", exclude={"label", "role"})
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
