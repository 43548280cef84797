"""`measure`: the speed of whole training steps, in a process of its own, into the plan's report folder."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from fp8migrate.errors import InfrastructureError, UsageError
from fp8migrate.evidence.measurement import Measurement, summarize
from fp8migrate.facts.backends import BackendName, find_support, recipes_of, refusal, version_of
from fp8migrate.facts.recipes import BlockRecipe, CurrentRecipe, DelayedRecipe, Recipe, RowwiseRecipe, TensorwiseRecipe
from fp8migrate.jobs import Measure, MeasuredArm, Precision
from fp8migrate.phases.build import FP8_CAPABILITY
from fp8migrate.plan.load import LoadedPlan
from fp8migrate.plan.schema import Candidate, Plan
from fp8migrate.records.files import replace_file, write_errors
from fp8migrate.records.log_tail import last_words
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.keep import kept_layers
from fp8migrate.sizing.policy import resolve_policy
from fp8migrate.trainers.builtin import probe

MEASUREMENT = "measurement.json"
_RECIPES: dict[str, Recipe] = {
    recipe.kind: recipe
    for recipe in (DelayedRecipe(amax_history_len=16), CurrentRecipe(), BlockRecipe(), TensorwiseRecipe(), RowwiseRecipe())
}
GRAMMAR = (
    "baseline, control, candidate, or candidate and levers: candidate+fp8_head, +fast_accumulation, +history=1, "
    "+recipe=current, +torch_attention, +te_rotation; torchao=tensorwise"
)


def default_arms(plan: Plan) -> tuple[str, ...]:
    """BF16, the candidate with FP8 off and on, and the levers that pay most."""
    if _is_torchaos(plan.candidate):
        return "baseline", "candidate"
    return "baseline", "control", "candidate", "candidate+fp8_head", "candidate+fp8_head+fast_accumulation"


def measure_plan(
    loaded: LoadedPlan,
    reports: Path,
    *,
    arms: Sequence[MeasuredArm],
    rounds: int = 3,
    steps: int = 5,
    seconds: float = 540,
    levers: bool = True,
    tell: Callable[[str], None] = print,
) -> Measurement:
    """Run the measurement and write measurement.json and measurement.md, also of one that ended early.

    Raises UsageError (recompute, no torch, no FP8 here), InfrastructureError (nothing was measured).
    """
    plan = loaded.plan
    if plan.training.recompute:
        raise UsageError(
            "measure times steps that keep their activations, and the plan recomputes them",
            where=f"{loaded.where('training.recompute')}: training.recompute",
            next_step="Say training.recompute: false to measure; where that is out of memory, with a smaller micro_batch_size.",
        )
    _demand_fp8_here(plan, arms)
    task = Measure(
        model=plan.model,
        training=plan.training,
        arms=tuple(arms),
        rounds=rounds,
        steps=steps,
        seconds=seconds,
        levers=levers,
        device=plan.launch.device,
    )
    folder = reports / plan.name / "measure"
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    request, output = folder / "request.json", folder / "lines.jsonl"
    replace_file(request, task.model_dump_json(indent=1).encode())
    output.unlink(missing_ok=True)
    code = _run(request, output, folder / "worker.log", tell)
    return _conclude(plan, folder, output, code)


def _run(request: Path, output: Path, log: Path, tell: Callable[[str], None]) -> int:
    command = (sys.executable, "-P", "-m", "fp8migrate.worker.measure", str(request), str(output))
    tell(f"Measuring; what is found stands in {output}, the worker's words in {log}.")
    with log.open("wb") as words:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT, check=False).returncode


def _conclude(plan: Plan, folder: Path, output: Path, code: int) -> Measurement:
    lines = read_lines(output)
    if not lines:
        words = last_words((folder / "worker.log").read_text(errors="replace")) or f"exit code {code}"
        raise InfrastructureError(f"nothing was measured: {words}", where=str(folder / "worker.log"))
    found = summarize(plan.name, plan.model, plan.training, lines)
    if code != 0:
        found = found.model_copy(update={"notes": (*found.notes, f"the measurement ended early, exit code {code}")})
    # Numbers first, and loaded only now: what reports are written with is not needed to measure.
    replace_file(folder.parent / MEASUREMENT, orjson.dumps(found.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
    from fp8migrate.report.measurement import render

    replace_file(folder.parent / "measurement.md", render(found).encode())
    return found


def read_lines(output: Path) -> list[dict[str, object]]:
    """Whole lines; one that was cut off by a dying process is left out."""
    if not output.exists():
        return []
    return [orjson.loads(line) for line in output.read_bytes().split(b"\n")[:-1] if line]


def arm_of(plan: Plan, name: str) -> MeasuredArm:
    """An arm by its name. Raises UsageError."""
    first, *levers = name.split("+")
    candidate = plan.candidate
    if first == "baseline" and not levers:
        return MeasuredArm(name=name, precision=Precision())
    if first.startswith("torchao=") and not levers:
        recipe = _recipe(first.removeprefix("torchao="), name)
        return MeasuredArm(name=name, precision=_precision(plan, "torchao", recipe))
    if first not in ("control", "candidate"):
        raise _refuse(name)
    backend: BackendName = "torchao" if _is_torchaos(candidate) else "transformer_engine"
    if levers and backend == "torchao":
        raise UsageError(
            f"{name}: levers are of Transformer Engine's fused modules, and {candidate.recipe.kind} runs on torchao",
            where="--arm",
            next_step="Measure candidate alone, or a plan with delayed, current or block.",
        )
    if len(set(levers)) < len(levers):
        raise _refuse(name)
    arm = MeasuredArm(name=name, precision=_precision(plan, backend, candidate.recipe if first == "candidate" else None))
    for lever in levers:
        arm = _with_lever(arm, lever)
    if "fp8_head" in levers:
        _demand_fp8_head(plan, arm)
    return arm


def _is_torchaos(candidate: Candidate) -> bool:
    """Whether torchao runs the plan's candidate: asked for, or the only library that has the recipe."""
    kind = candidate.recipe.kind
    only = kind in recipes_of("torchao") and kind not in recipes_of("transformer_engine")
    return candidate.backend == "torchao" or only


def why_unmeasured(plan: Plan) -> str:
    """Why the speed of the plan's candidate is not measured, on whatever GPU; empty: it is."""
    candidate = plan.candidate
    if candidate.backend == "emulated":
        return "emulated speed is not measured: it says nothing of what FP8 gains"
    if candidate.recipe.kind == "bf16":
        return "that is BF16, the arm baseline"
    automatic: BackendName = "torchao" if _is_torchaos(candidate) else "transformer_engine"
    backend = automatic if candidate.backend == "auto" else candidate.backend
    kinds = [recipe.kind for recipe in candidate.recipes if recipe.kind != "bf16"]
    missing = next((kind for kind in kinds if find_support(backend, kind) is None), None)
    return "" if missing is None else refusal(backend, missing, None) or ""


def measured_precision(plan: Plan) -> Precision | None:
    """What the candidate's speed is measured in; None: it is not measured."""
    return None if why_unmeasured(plan) else arm_of(plan, "candidate").precision


def _precision(plan: Plan, backend: BackendName, recipe: Recipe | None) -> Precision:
    candidate = plan.candidate
    return Precision(
        backend=backend,
        recipe=recipe,
        keep_bf16=candidate.keep_bf16,
        kept=kept_layers(candidate, plan.model, plan.model),
        policy=candidate.policy,
        odd_shapes=candidate.odd_shapes,
    )


def _demand_fp8_here(plan: Plan, arms: Sequence[MeasuredArm]) -> None:
    """Before anything is written: a report of a machine with a GPU must not give way to one of a machine without."""
    named = [arm.name for arm in arms if arm.precision.backend != "bf16"]
    if not named:
        return
    found = probe(plan.launch.device, plan.data, plan.launch.threads_per_job)
    capability = version_of(found.compute_capability)
    if capability is None or capability < FP8_CAPABILITY:
        raise UsageError(
            f"measure times FP8 on the GPU that runs it, and {found.device_name} has none: {', '.join(named)}",
            where="--arm",
            next_step="Measure on a GPU of compute capability 8.9 (Ada) or newer; --arm baseline alone times BF16 here.",
        )


def _demand_fp8_head(plan: Plan, arm: MeasuredArm) -> None:
    """The lever must not be one in name alone. Raises UsageError."""
    precision, training = arm.precision, plan.training
    if precision.recipe is None:
        return
    policy = resolve_policy(
        *(gemm_sites(plan.model, training.sequence_length), precision.recipe, precision.keep_bf16, precision.policy),
        training.micro_batch_size * training.sequence_length,
        kept=precision.kept,
        odd_shapes=precision.odd_shapes,
    )
    if reason := policy.kept.get("lm_head"):
        raise UsageError(
            f"{arm.name}: lm_head stays in BF16 all the same ({reason})",
            where="--arm",
            next_step="Change what the plan keeps in BF16, or leave +fp8_head out.",
        )


def _with_lever(arm: MeasuredArm, lever: str) -> MeasuredArm:
    precision = arm.precision
    key, _, value = lever.partition("=")
    switches: dict[str, dict[str, object]] = {
        "torch_attention": {"attention": "torch"},
        "te_rotation": {"rotation": "transformer_engine"},
    }
    if lever in switches:
        return arm.model_copy(update=switches[lever])
    if lever == "fp8_head":
        changed: dict[str, object] = {
            "keep_bf16": tuple(each for each in precision.keep_bf16 if each not in ("lm_head", "head"))
        }
    elif lever == "fast_accumulation" and isinstance(precision.recipe, DelayedRecipe | CurrentRecipe):
        changed = {"recipe": precision.recipe.model_copy(update={"backward_split_accumulator": False})}
    elif key == "recipe":
        changed = {"recipe": _recipe(value, arm.name)}
    elif key == "history" and value.isdigit() and isinstance(precision.recipe, DelayedRecipe):
        changed = {"recipe": precision.recipe.model_copy(update={"amax_history_len": int(value)})}
    else:
        raise _refuse(arm.name)
    return arm.model_copy(update={"precision": precision.model_copy(update=changed)})


def _recipe(kind: str, name: str) -> Recipe:
    if kind not in _RECIPES:
        raise _refuse(name)
    return _RECIPES[kind]


def _refuse(name: str) -> UsageError:
    return UsageError(f"unknown arm {name!r}", where="--arm", next_step=f"Allowed: {GRAMMAR}.")
