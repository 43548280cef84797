"""The baseline bundle: what the baseline phase found, sealed by hashes, and refused once it no longer holds here."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from fp8migrate.engine.changes import environment_changes
from fp8migrate.engine.pipeline import PhaseOutcome
from fp8migrate.engine.workspace import Workspace
from fp8migrate.errors import UsageError
from fp8migrate.evidence.schema import BaselineEvidence
from fp8migrate.records.schema import Environment
from fp8migrate.records.store import find_run
from fp8migrate.records.writer import EVALS_FILE, METRICS_FILE
from fp8migrate.settings import Settings

BUNDLE_FILE = "baseline_bundle.json"
SCHEMA_VERSION = 1


class SealedRun(Settings):
    """One BF16 run: its folder below the report folder, and SHA-256 (hex) of what it logged."""

    folder: str
    metrics_sha256: str
    evals_sha256: str


class BaselineBundle(Settings):
    """Losses in nats per token. tokens_to_loss: (loss, tokens at which the smoothed training loss first fell to it)."""

    schema_version: int = SCHEMA_VERSION
    plan_name: str
    environment: Environment
    jobs: tuple[str, ...] = Field(description="digests of the phase's jobs: model, data, training, seed")
    runs: tuple[SealedRun, ...]
    final_validation_loss: float | None
    floor_gaps: tuple[float, ...] = Field(description="relative validation gaps of BF16 runs one ulp apart")
    spikes: int
    tokens_to_loss: tuple[tuple[float, int], ...]
    tokens_per_second: float | None
    peak_memory_bytes: int | None


def write_bundle(plan_name: str, workspace: Workspace, outcome: PhaseOutcome, environment: Environment) -> Path:
    """Seal what the baseline phase found."""
    evidence = outcome.done.baseline
    assert evidence is not None
    bundle = BaselineBundle(
        plan_name=plan_name,
        environment=environment,
        jobs=outcome.job_digests,
        runs=_sealed_runs(workspace, evidence),
        final_validation_loss=evidence.final_validation_loss,
        floor_gaps=tuple(delta.value for delta in evidence.floor),
        spikes=evidence.spikes,
        tokens_to_loss=evidence.tokens_to_loss,
        # Speed is a finding on a GPU; on a CPU jobs share the cores with each other.
        tokens_per_second=evidence.tokens_per_second if environment.device == "cuda" else None,
        peak_memory_bytes=evidence.peak_memory_bytes,
    )
    return workspace.write(BUNDLE_FILE, bundle.model_dump_json(indent=2) + "\n")


def check_bundle(workspace: Workspace, environment: Environment, jobs: Sequence[str]) -> None:
    """Refuse a bundle that was made elsewhere, of other jobs, or whose runs changed since. UsageError names what changed.

    jobs: digests of the baseline phase's jobs under the plan as it is now.
    """
    path = workspace.root / BUNDLE_FILE
    again = "Run `fp8migrate baseline` again, or `fp8migrate run`, which redoes what has changed."
    try:
        bundle = BaselineBundle.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            "there is no baseline bundle yet", where=str(path), next_step="Run `fp8migrate baseline` first."
        ) from None
    except (OSError, ValidationError) as error:
        raise UsageError("the baseline bundle cannot be read", where=str(path), next_step=again) from error
    changes = environment_changes(bundle.environment, environment)
    if tuple(jobs) != bundle.jobs:
        changes.append("the plan's model, data, training or launch settings")
    changes += [
        f"{run.folder} (edited or gone)" for run in bundle.runs if _seal(workspace.root / run.folder, run.folder) != run
    ]
    if changes:
        raise UsageError(f"the baseline bundle is stale; changed: {'; '.join(changes)}", where=str(path), next_step=again)


def _sealed_runs(workspace: Workspace, evidence: BaselineEvidence) -> tuple[SealedRun, ...]:
    found = (find_run(workspace.runs_dir, run.key) for run in evidence.runs)
    folders = [path.relative_to(workspace.root).as_posix() for path in found if path is not None]
    return tuple(_seal(workspace.root / folder, folder) for folder in folders)


def _seal(directory: Path, folder: str) -> SealedRun:
    metrics, evals = (_sha256(directory / name) for name in (METRICS_FILE, EVALS_FILE))
    return SealedRun(folder=folder, metrics_sha256=metrics, evals_sha256=evals)


def _sha256(path: Path) -> str:
    """Of a file; of nothing where it is not there, so that a deleted log is noticed."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
