"""Jobs of all phases: the arms of a pair are built in one place, so that they differ in precision and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fp8migrate.errors import PlanError, UsageError
from fp8migrate.facts.backends import BackendName, recipes_of, refusal, version_of
from fp8migrate.facts.expressible import layer_refusal, plan_refusal
from fp8migrate.facts.recipes import Recipe
from fp8migrate.jobs import Arm, CheckpointRef, Cooldown, DataOrder, DesignName, Forward, Job, Precision, Role, Task, Train
from fp8migrate.plan.schema import LlamaModel, Modules, Plan, Training
from fp8migrate.records.schema import Environment
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.fused import module_recipes
from fp8migrate.sizing.keep import Kept, kept_layers
from fp8migrate.sizing.policy import resolve_policy

# Passes without an update that fill the amax histories of a run which starts from a BF16 checkpoint (PARITY.md 2).
WARM_AMAX_BATCHES = 4

# Data orders of different designs never meet: each design draws its seeds from a range of its own above the plan's seed.
SEED_RANGE = {"baseline": 0, "integration": 0, "screen": 10_000, "branch": 20_000, "scratch": 0}

# CUDA compute capability from which FP8 GEMMs exist (Ada: 8.9).
FP8_CAPABILITY = (8, 9)


# What emulation has: a layer in the place of each linear layer.
_EXCHANGED: Modules = "linear"


@dataclass(frozen=True)
class Start:
    """Where the runs of a pair begin: the initial weights, or a checkpoint of the trunk."""

    step: int = 0
    trunk: Job | None = None

    @property
    def ref(self) -> CheckpointRef | None:
        return None if self.trunk is None else CheckpointRef(job=self.trunk.digest, step=self.step)


@dataclass(frozen=True)
class JobBuilder:
    """Builds the jobs of one phase for one model and schedule.

    advised: layers of the plan's own model that stay in BF16 because the advisor says so, and why.
    """

    plan: Plan
    environment: Environment
    phase: str
    model: LlamaModel
    training: Training
    advised: Kept = ()

    @property
    def kept(self) -> Kept:
        """Layers of this model that stay in BF16 for their size or on advice."""
        return kept_layers(self.plan.candidate, self.plan.model, self.model, self.advised)

    def job(self, task: Task, role: Role, start: CheckpointRef | None = None) -> Job:
        """A job with the plan's launch settings and a name for people."""
        launch = self.plan.launch
        return Job(
            task=task,
            start=start,
            device=launch.device,
            threads=launch.threads_per_job,
            label=label(self.phase, role),
            role=role,
        )

    def pair(
        self,
        design: DesignName,
        pair: int,
        arms: Sequence[Arm],
        *,
        start: Start,
        last_step: int,
        data_order: DataOrder,
        fraction: float | None = None,
        seed: int | None = None,
        cooldown: Cooldown | None = None,
        checkpoint_at: tuple[int, ...] = (),
    ) -> tuple[Job, ...]:
        """One pair: a run for each arm, from the same bits on the same data. seed: of the initial weights."""
        training = self.training if seed is None else self.training.model_copy(update={"seed": seed})
        jobs = []
        for arm in arms:
            precision = self.precision(arm)
            warm = start.trunk is not None and precision.has_history
            task = Train(
                model=self.model,
                data=self.plan.data,
                training=training,
                precision=precision,
                data_order=data_order,
                first_step=start.step,
                last_step=last_step,
                cooldown=cooldown,
                one_ulp=self.one_ulp(arm, pair),
                warm_amax_batches=WARM_AMAX_BATCHES if warm else 0,
                validate_at=validation_steps(start.step, last_step),
                validate_forwards=self.forwards(arm),
                checkpoint_at=checkpoint_at if arm == "baseline" else (),
            )
            jobs.append(self.job(task, Role(design=design, arm=arm, pair=pair, fraction=fraction), start.ref))
        return tuple(jobs)

    def precision(self, arm: Arm) -> Precision:
        """What executes the linear layers of an arm."""
        candidate = self.plan.candidate
        if arm in ("baseline", "floor"):
            return Precision()
        backend = resolve_backend(self.plan, self.environment)
        if arm == "control":
            return Precision(backend=backend, keep_bf16=candidate.keep_bf16, modules=candidate.modules)
        here = Precision(
            backend=backend,
            keep_bf16=candidate.keep_bf16,
            kept=self.kept,
            odd_shapes=candidate.odd_shapes,
            modules=candidate.modules,
        )
        if candidate.recipe.kind == "bf16" and arm == "sensitivity":  # an A/A test has nothing to stand in for
            return here.model_copy(update={"recipe": self.plan.design.sensitivity})
        bad = self.plan.design.sensitivity
        is_bad = candidate.recipe == bad and not candidate.policy and backend == "emulated"  # then one run serves as both
        own = here.model_copy(update={"recipe": candidate.recipe, "policy": candidate.policy})
        if arm != "sensitivity" or is_bad:
            return own
        # No library runs it: it is emulated whatever the candidate runs on.
        if self._takes_all_that(bad):
            return here.model_copy(update={"backend": "emulated", "recipe": bad, "modules": _EXCHANGED})
        return own.model_copy(update={"backend": "emulated", "stand_in": bad})

    def _takes_all_that(self, recipe: Recipe) -> bool:
        """Whether another recipe would go exactly where the candidate has FP8: then plans of other recipes share its runs."""
        candidate, tokens = self.plan.candidate, self.training.micro_batch_size * self.training.sequence_length
        sites = gemm_sites(self.model, self.training.sequence_length)
        found, wanted = (
            resolve_policy(
                *(sites, each, candidate.keep_bf16, rules, tokens),
                kept=self.kept,
                odd_shapes=candidate.odd_shapes,
                modules=modules,
            )
            for each, rules, modules in (
                (recipe, (), _EXCHANGED),
                (candidate.recipe, candidate.policy, candidate.modules),
            )
        )
        return all(found.sites[site.name].recipes.keys() == wanted.sites[site.name].recipes.keys() for site in sites)

    def one_ulp(self, arm: Arm, pair: int) -> int | None:
        """The floor starts one ulp away; so does the candidate of an A/A test, which would else be the control."""
        aa_test = arm == "candidate" and self.plan.candidate.recipe.kind == "bf16"
        return pair if arm == "floor" or aa_test else None

    def forwards(self, arm: Arm) -> tuple[Forward, ...]:
        """Forwards under which an arm is validated: arms with FP8 under both."""
        fp8 = arm == "sensitivity" or (arm == "candidate" and self.plan.candidate.recipe.kind != "bf16")
        return ("bf16", "fp8") if fp8 else ("bf16",)

    def data_order(self, design: DesignName, number: int) -> DataOrder:
        """The design's data order `number`. Runs that start from a trunk see text that the trunk has not."""
        unseen = design in ("screen", "branch", "integration")
        return DataOrder(split="unseen" if unseen else "trunk", seed=self.training.seed + SEED_RANGE[design] + number)


def arms_of_pair(plan: Plan, pair: int) -> tuple[Arm, ...]:
    """Arms that pair number `pair` runs: floor and control stop at the number that the plan gives them."""
    arms: list[Arm] = ["baseline", "candidate", "sensitivity"]
    if pair < plan.design.control_pairs:
        arms.append("control")
    if pair < plan.design.floor_pairs:
        arms.append("floor")
    return tuple(arms)


def validation_steps(first_step: int, last_step: int) -> tuple[int, ...]:
    """PARITY.md 2: a quarter, half and all of the run; from the initial weights also before the first step."""
    length = last_step - first_step
    steps = {first_step + max(1, round(length * share)) for share in (0.25, 0.5, 1.0)}
    return tuple(sorted(steps | ({0} if first_step == 0 else set())))


def label(phase: str, role: Role) -> str:
    """small_scale-screen-0.60-p2-candidate"""
    place = "" if role.fraction is None else f"-{role.fraction:.2f}"
    design = "" if role.design == phase else f"-{role.design}"
    return f"{phase}{design}{place}-p{role.pair}-{role.arm}"


def resolve_backend(plan: Plan, environment: Environment) -> BackendName:
    """The backend of FP8 arms. Raises PlanError where it cannot run the plan's recipes here.

    `auto` is the library that the recipe is of where the GPU has FP8, and emulation elsewhere. It never settles for emulation
    where the GPU has FP8: that must be asked for.
    """
    wanted = plan.candidate.backend
    capability = version_of(environment.compute_capability)
    if wanted == "emulated" or (wanted == "auto" and (capability is None or capability < FP8_CAPABILITY)):
        if what := _inexpressible(plan, "emulated"):
            raise PlanError(f"candidate.backend {wanted}: {what}", where=plan.name)
        return "emulated"
    backend = _library_of(plan) if wanted == "auto" else wanted
    for recipe in plan.candidate.recipes:
        if what := refusal(backend, recipe.kind, capability, version_of(environment.cuda)):
            raise PlanError(f"candidate.backend {wanted}: {what}", where=plan.name)
    if what := plan_refusal(backend, plan.candidate.recipes, capability) or _inexpressible(plan, backend):
        raise PlanError(f"candidate.backend {wanted}: {what}", where=plan.name)
    installed = environment.torchao if backend == "torchao" else environment.transformer_engine
    if installed is None:
        name = {"torchao": "torchao", "transformer_engine": "Transformer Engine"}[backend]
        raise PlanError(
            f"candidate.backend {wanted}: {plan.candidate.recipe.kind} runs on {name}, which is not installed here",
            where=plan.name,
            next_step="Install it (fp8migrate doctor says how), or say candidate.backend: emulated; the report will say so.",
        )
    return backend


def _inexpressible(plan: Plan, backend: BackendName) -> str | None:
    """The first layer of the plan's model of which the backend cannot run what the plan asks, and why."""
    training, candidate = plan.training, plan.candidate
    policy = resolve_policy(
        gemm_sites(plan.model, training.sequence_length),
        candidate.recipe,
        candidate.keep_bf16,
        candidate.policy,
        training.micro_batch_size * training.sequence_length,
        odd_shapes=candidate.odd_shapes,
    )
    if candidate.modules == "fused":
        if backend != "transformer_engine":
            why = f"they are Transformer Engine's, and {candidate.recipe.kind} runs on {backend}"
            return f"candidate.modules fused: {why}: say candidate.modules: linear"
        if training.recompute:
            return "candidate.modules fused and training.recompute were never tried together: say candidate.modules: linear"
        try:
            module_recipes(policy)
        except UsageError as error:
            return f"{error.what}. {error.next_step}"
    found = ((name, layer_refusal(backend, site.recipes)) for name, site in policy.sites.items())
    return next((f"{name}: {why}" for name, why in found if why), None)


def _library_of(plan: Plan) -> Literal["transformer_engine", "torchao"]:
    """The library that has the plan's recipe, Transformer Engine before torchao. Raises PlanError where none has."""
    kind = plan.candidate.recipe.kind
    if kind == "bf16" or kind in recipes_of("transformer_engine"):
        return "transformer_engine"
    if kind in recipes_of("torchao"):
        return "torchao"
    raise PlanError(
        f"candidate.backend auto: no library runs {kind}",
        where=plan.name,
        next_step="Say candidate.backend: emulated to judge the recipe in emulation; the report will say so.",
    )
