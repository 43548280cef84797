"""Reports made by hand: every value in them is known, so that a test can look for it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.schema import (
    BaselineEvidence,
    Cell,
    Comparison,
    Delta,
    Endpoint,
    GemmAgreement,
    IntegrationEvidence,
    LayerAgreement,
    LogitAgreement,
    PairCurves,
    RunFact,
)
from fp8migrate.facts.operands import GEMMS
from fp8migrate.jobs import Arm
from fp8migrate.plan.audit import AuditRow
from fp8migrate.records.schema import Conversion, Environment, LayerConversion, Outcome, Series
from fp8migrate.verdict import PhaseReport, Report, Verdict

ENVIRONMENT = Environment(
    fp8migrate="0.1.0",
    source_sha256="ab" * 32,
    python="3.11.9",
    torch="2.11.0",
    device="cpu",
    device_name="AMD EPYC 9454",
    cpu_capability="AVX512",
    bf16_gemm="float32 over BF16-rounded operands",
    data_sha256="cd" * 32,
    data_tokens=31_457_280,
    variables={"OMP_NUM_THREADS": "1"},
)
VERDICTS = {
    "PASS": Verdict(
        "PASS",
        "REAL_BUT_ACCEPTABLE",
        "Validation loss under a BF16 forward is +0.021 % (upper bound +0.058 %), below the margin of 0.25 % in all 4 pairs.",
        "Rehearse at full scale: fp8migrate full-scale plan.yaml",
        "parity.validation_loss",
    ),
    "FAIL": Verdict(
        "FAIL",
        "GAP",
        "Validation loss is +1.812 % (lower bound +1.644 %), above the margin of 0.25 %.",
        "Keep lm_head and the first layer in BF16 and run small-scale again.",
        "parity.validation_loss",
    ),
    "INCONCLUSIVE": Verdict(
        "INCONCLUSIVE",
        "UNDERPOWERED",
        "The interval [−0.110, +0.322] % holds both zero and the margin of 0.25 %.",
        "11 pairs would decide at this scatter.",
        "parity.validation_loss",
    ),
    "SCREENED": Verdict(
        "SCREENED",
        "",
        "All three starts stay below the margin of 0.25 %; a screen cannot pass.",
        "Run the branch design.",
        "parity.validation_loss",
    ),
}
GAPS = {"PASS": (0.0002, 0.0003), "FAIL": (0.018, 0.0018), "INCONCLUSIVE": (0.001, 0.0022), "SCREENED": (0.0003, 0.0004)}


def series(name: str, steps: np.ndarray, values: np.ndarray, unit: str = "nats per token") -> Series:
    return Series(name, unit, steps, values, expected_last_step=int(steps[-1]) if steps.size else None)


def baseline_loss(first: int, last: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    steps = np.arange(first, last, dtype=np.int64)
    return steps, 1.25 + 4.3 / (1 + steps / 25.0) + rng.normal(0, 0.03, steps.size)


def curves(arm: Arm, pair: int, fraction: float | None, gap: float, *, first: int, last: int) -> PairCurves:
    """Both arms see the same data noise; the gap grows in over the first fifth of the run."""
    rng = np.random.default_rng(1000 * pair + first)
    steps, base = baseline_loss(first, last, rng)
    own = np.random.default_rng([pair, first, len(arm)])
    ramp = np.minimum(1, (steps - first) / (0.2 * (last - first)))
    other = base * (1 + gap * ramp + own.normal(0, 0.0006, steps.size))
    return PairCurves(arm, pair, fraction, series("loss", steps, base), series("loss", steps, other))


def cell(arm: Arm, endpoint: Endpoint, fraction: float | None, mean: float, sd: float, pairs: int) -> Cell:
    """Pairs whose mean and SD are exactly the ones asked for."""
    rng = np.random.default_rng([pairs, len(arm), len(endpoint), int((fraction or 0) * 100)])
    noise = rng.normal(0, 1, pairs)
    if pairs > 1:
        noise = (noise - noise.mean()) / noise.std(ddof=1)
    values = mean + sd * noise
    deltas = tuple(Delta(pair, 1.4, 1.4 * (1 + float(value))) for pair, value in enumerate(values))
    return Cell(arm, endpoint, fraction, deltas, 0.00005 if endpoint == "validation_loss" else None)


def cells(fraction: float | None, gap: float, sd: float, pairs: int) -> list[Cell]:
    wanted: list[tuple[Arm, Endpoint, float, float, int]] = [
        ("candidate", "validation_loss", gap, sd, pairs),
        ("control", "validation_loss", 0.00004, 0.0001, 1),
        ("floor", "validation_loss", 0.00001, 0.00008, pairs),
        ("sensitivity", "validation_loss", 0.061, 0.008, 2),
        ("candidate", "training_loss", gap + 0.0025, sd, pairs),
        ("control", "training_loss", 0.00002, 0.0001, 1),
        ("floor", "training_loss", 0.00002, 0.0001, pairs),
        ("sensitivity", "training_loss", 0.112, 0.011, 2),
        ("candidate", "forward_penalty", 0.0024, 0.0001, pairs),
    ]
    return [cell(arm, endpoint, fraction, mean, spread, n) for arm, endpoint, mean, spread, n in wanted]


def runs(fraction: float | None, pairs: int, last: int) -> list[RunFact]:
    found = []
    arms: tuple[Arm, ...] = ("baseline", "candidate", "floor", "sensitivity")
    for pair in range(pairs):
        for arm in arms:
            label = f"small_scale-{'branch' if fraction is None else f'screen{fraction:g}'}-p{pair}-{arm}"
            outcome = Outcome(status="completed", last_step=last, exit_code=0, wall_seconds=42.0)
            found.append(RunFact(arm, pair, fraction, label, "ef" * 32, outcome, last, f"runs/{label}"))
    return found


AUDIT = (
    AuditRow("environment.torch", "same", "2.11.0", "2.11.0"),
    AuditRow("facts.data_sha256", "same", "cd" * 32, "cd" * 32),
    AuditRow("task.precision.backend", "different", "bf16", "emulated", expected=True),
    AuditRow("task.precision.recipe.format", "different", "—", "hybrid", expected=True),
    AuditRow("task.training.learning_rate", "same", "0.0006", "0.0006"),
    *(AuditRow(f"task.training.setting_{i}", "same", str(i), str(i)) for i in range(12)),
)


def conversion(layers: int = 4) -> Conversion:
    sites = ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down")
    found = [
        LayerConversion(
            name=f"layers.{i}.{site}",
            shape=(512, 512),
            flops_share=0.9 / (layers * len(sites)),
            gemms=GEMMS,
            reason="delayed hybrid",
        )
        for i in range(layers)
        for site in sites
    ]
    found.append(LayerConversion(name="lm_head", shape=(256, 512), flops_share=0.06, reason="keep_bf16: lm_head"))
    found.append(LayerConversion(name="attention.scores", shape=(0, 0), flops_share=0.04, reason="product of activations"))
    return Conversion(
        requested="delayed hybrid",
        effective="delayed hybrid, emulated",
        layers=tuple(found),
        fp8_flops_share=0.9,
        quantized_tensors=24_576,
    )


def comparison(
    kind: str = "PASS",
    *,
    design: str = "branch",
    pairs: int = 4,
    fractions: tuple[float | None, ...] = (None,),
    steps: int = 600,
    **changes: Any,
) -> Comparison:
    gap, sd = GAPS[kind]
    drawn, all_cells, all_runs = [], [], []
    for fraction in fractions:
        first = int((fraction or 0.5) * 1200)
        for pair in range(pairs):
            drawn.append(curves("candidate", pair, fraction, gap + 0.0025, first=first, last=first + steps))
            drawn.append(curves("floor", pair, fraction, 0.0, first=first, last=first + steps))
        drawn.append(curves("sensitivity", 0, fraction, 0.11, first=first, last=first + steps))
        all_cells += cells(fraction, gap, sd, pairs)
        all_runs += runs(fraction, pairs, first + steps)
    made = Comparison(
        design=design,  # type: ignore[arg-type]
        margin=0.0025,
        serve="bf16",
        serve_margin=0.0025,
        require_fp8=True,
        planned_pairs=pairs,
        planned_sensitivity=True,
        fractions=fractions,
        cells=tuple(all_cells),
        curves=tuple(drawn),
        runs=tuple(all_runs),
        audit=AUDIT,
        conversion=conversion(),
        environment=ENVIRONMENT,
        emulated=True,
        identical_pairs=0,
        data_passes=1.0,
        recipe="delayed hybrid",
        model="llama, 4 layers of 512, 14.2 M parameters",
        tokens=39_321_600,
    )
    return replace(made, **changes)


def agreement(name: str, sqnr_db: float) -> LayerAgreement:
    return LayerAgreement(name, sqnr_db, 1 - 10 ** (-sqnr_db / 10), 3.21, 3.22, finite=bool(np.isfinite(sqnr_db)))


def integration(layers: int = 4) -> IntegrationEvidence:
    rng = np.random.default_rng(5)
    sites = ("attention.qkv.weight", "attention.out.weight", "mlp.gate_up.weight", "mlp.down.weight", "norm.weight")
    names = [f"layers.{i}.{site}" for i in range(layers) for site in sites]
    outcome = Outcome(status="completed", last_step=1, exit_code=0, wall_seconds=9.0)
    return IntegrationEvidence(
        runs=(RunFact("candidate", 0, None, "integration-one-step", "aa" * 32, outcome, 1, "runs/integration-one-step"),),
        conversion=conversion(layers),
        logits=LogitAgreement(0.00213, 0.9871, 1.3952, 1.3985, 65_536),
        outputs=tuple(agreement(name.removesuffix(".weight"), 31 + float(rng.normal(0, 2))) for name in names),
        gradients=tuple(agreement(name, 24 + float(rng.normal(0, 2.5))) for name in names),
        layers=tuple(
            GemmAgreement(**vars(agreement(f"{name}: {gemm}", 26.0 - i / 9)), layer=name, gemm=gemm, forecast_db=27.0 - i / 9)
            for i, name in enumerate(name.removesuffix(".weight") for name in names[:-1])
            for gemm in GEMMS
        ),
        resume_mismatches=(),
        accumulation_error=0.0123,
        accumulation_error_bf16=0.0041,
    )


def baseline(steps: int = 1200) -> BaselineEvidence:
    rng = np.random.default_rng(7)
    at, loss = baseline_loss(0, steps, rng)
    outcome = Outcome(status="completed", last_step=steps, exit_code=0, wall_seconds=312.0)
    return BaselineEvidence(
        runs=(RunFact("baseline", 0, None, "baseline-trunk", "bb" * 32, outcome, steps, "runs/baseline-trunk"),),
        loss=series("loss", at, loss),
        grad_norm=series("grad_norm", at, 0.4 + 2 / (1 + at / 30) + np.abs(rng.normal(0, 0.08, at.size)), ""),
        final_validation_loss=1.3952,
        initial_validation_loss=5.5461,
        uniform_loss=5.5452,
        floor=tuple(Delta(i, 1.4, 1.4 * (1 + d)) for i, d in enumerate((0.0002, -0.0004, 0.0001, 0.0005))),
        spikes=1,
        tokens_to_loss=((3.0, 2_621_440), (2.0, 6_553_600)),
        tokens_per_second=81_234.0,
        peak_memory_bytes=3 * 2**29,
    )


RESULTS = (
    CheckResult(
        "numerics.gradients", "pass", "The lowest gradient SQNR is 19.2 dB.", "", 19.2, 15.0, "dB", None, ("gradients",)
    ),
    CheckResult("coverage.flops", "pass", "90.0 % of GEMM FLOPs run in FP8.", "", 0.9, 0.5, "share"),
    CheckResult("memory.peak", "skipped", "The emulated backend says nothing about memory."),
)


def parity_results(kind: str) -> tuple[CheckResult, ...]:
    verdict = VERDICTS[kind]
    status = {"PASS": "pass", "SCREENED": "pass", "FAIL": "fail", "INCONCLUSIVE": "inconclusive"}[kind]
    gap, sd = GAPS[kind]
    half = 2.353 * sd / 2
    return (
        CheckResult(
            "parity.validation_loss",
            status,  # type: ignore[arg-type]
            verdict.why,
            verdict.code,
            gap,
            0.0025,
            "relative",
            (gap - half, gap + half),
            ("small_scale-branch-p0-candidate",),
            "branch",
        ),
        CheckResult("stability.spikes", "inconclusive", "3 spikes against 1.", "SPIKES", 3, 1, "spikes", advisory=True),
    )


def report(kind: str = "PASS", comparisons: Sequence[Comparison] | None = None, **changes: Any) -> Report:
    """A complete report of an emulated small-scale run."""
    state = {"PASS": "passed", "FAIL": "failed", "INCONCLUSIVE": "inconclusive", "SCREENED": "screened"}[kind]
    made = Report(
        name="llama-14m",
        verdict=VERDICTS[kind],
        headline=f"{kind}: emulated FP8 (delayed hybrid) against BF16, 4 pairs from one checkpoint, margin 0.25 %",
        scope=(
            "Recipe delayed hybrid, E4M3 forward and E5M2 gradients.",
            "14.2 M parameters, 39.3 M tokens, from the checkpoint at 50 %.",
        ),
        not_covered=(
            "Speed and memory: the FP8 was emulated.",
            "Outliers after long training, tensor-parallel amax groups, experts.",
        ),
        phases=(
            PhaseReport(
                "baseline", "passed", (CheckResult("stability.baseline", "pass", "Loss fell from 5.55 to 1.40."),), "", 312.4
            ),
            PhaseReport("integration", "passed", RESULTS, "", 18.2),
            PhaseReport("small_scale", state, parity_results(kind), "", 4312.0),  # type: ignore[arg-type]
            PhaseReport("full_scale", "not_run", (), "not in this version"),
        ),
        baseline=baseline(),
        integration=integration(),
        comparisons=tuple(comparisons) if comparisons is not None else (comparison(kind),),
        environment=ENVIRONMENT,
        plan_text="name: llama-14m\ncandidate:\n  backend: emulated\n  recipe: {kind: delayed}\n",
        plan_sha256="12" * 32,
        evidence_sha256="34" * 32,
        reproduce=("pip install fp8migrate==0.1.0", "fp8migrate run plan.yaml"),
        created="2026-01-31T12:00:00Z",
        version="0.1.0",
    )
    return replace(made, **changes)


def minimal() -> Report:
    """Only the baseline has run."""
    return Report(
        name="first-try",
        verdict=Verdict(
            "INCONCLUSIVE", "TRUNCATED", "Only the baseline phase has run: there is no candidate yet.", "fp8migrate run"
        ),
        headline="INCONCLUSIVE: only the BF16 baseline has run",
        scope=(),
        not_covered=(),
        phases=(
            PhaseReport(
                "baseline", "passed", (CheckResult("stability.baseline", "pass", "Loss fell from 5.55 to 1.40."),), "", 312.4
            ),
            PhaseReport("integration", "not_run", (), "stopped after the baseline"),
        ),
        baseline=baseline(),
        integration=None,
        comparisons=(),
        environment=None,
        plan_text="name: first-try\n",
        plan_sha256="12" * 32,
        evidence_sha256="34" * 32,
        reproduce=("fp8migrate baseline plan.yaml",),
    )


def many() -> Report:
    """Three starts, four orders, all arms, then a branch whose arms are told to differ."""
    odd = (
        AuditRow("environment.variables.NVTE_ALLOW_NONDETERMINISTIC_ALGO", "unknown", "—", "0"),
        AuditRow("task.training.grad_clip_norm", "different", "1.0", "0.5"),
    )
    screen = comparison("SCREENED", design="screen", fractions=(0.3, 0.6, 0.9), steps=150)
    branch = comparison("INCONCLUSIVE", audit=(*AUDIT, *odd), serve="fp8", serve_margin=0.005)
    served = [cell("candidate", "validation_loss_fp8", None, 0.0031, 0.0004, 4)]
    return report(
        "INCONCLUSIVE",
        (screen, replace(branch, cells=(*branch.cells, *served), primary=("validation_loss", "validation_loss_fp8"))),
    )


def long_names() -> Report:
    """Names that are long, and names that look like markup."""
    name = "transformer.decoder.layers.17.self_attention.query_key_value_projection.weight_quantizer" * 2
    evil = "<script>alert(1)</script>|`x`**b** $a$ @team"
    found = integration(8)
    layers = (agreement(name, 12.5), agreement(evil, float("nan")), *found.gradients)
    wide = comparison("FAIL", recipe=evil, model=name, audit=(*AUDIT, AuditRow(name, "different", evil, name)))
    broken = replace(wide, curves=tuple(_diverged(one) for one in wide.curves))
    changed = report("FAIL", (broken,), integration=replace(found, gradients=layers), name="long-" + "x" * 58)
    verdict = replace(changed.verdict, why=f"{changed.verdict.why} {evil} {name}")
    return replace(changed, verdict=verdict, headline=f"{changed.headline} {name}", reproduce=("echo '```'", f"run {name}"))


def _diverged(one: PairCurves) -> PairCurves:
    """The candidate leaves the baseline at two thirds and ends as NaN."""
    if one.arm != "candidate":
        return one
    values = one.candidate.values.copy()
    third = values.size // 3
    values[2 * third :] *= np.linspace(1, 5, values.size - 2 * third)
    values[-third // 4 :] = np.nan
    return replace(one, candidate=replace(one.candidate, values=values))


ALL = {
    "pass": lambda: report("PASS"),
    "fail": lambda: report("FAIL"),
    "inconclusive": lambda: report("INCONCLUSIVE"),
    "screened": lambda: report("SCREENED"),
    "minimal": minimal,
    "many": many,
    "long": long_names,
}
