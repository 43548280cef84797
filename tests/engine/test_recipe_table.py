"""Speed, memory and energy in the table of recipes: from which measurement, which cells, and what is left out and said."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from fp8migrate.cli import app
from fp8migrate.engine import measure, recipes
from fp8migrate.engine.measure import arm_of
from fp8migrate.engine.observer import SilentObserver
from fp8migrate.engine.recipe_arms import wanted_arms
from fp8migrate.engine.recipe_table import keep_table, refresh_table
from fp8migrate.engine.recipes import parse_variant, run_variants
from fp8migrate.engine.study import Study
from fp8migrate.errors import UserError
from fp8migrate.evidence.measurement import Measurement, summarize
from fp8migrate.facts.recipes import BlockRecipe, RowwiseRecipe
from fp8migrate.jobs import Measure, MeasuredArm
from fp8migrate.plan.load import LoadedPlan, load_plan
from fp8migrate.report.recipe_rows import RecipeRow, RecipesTable, RowGap, recipe_row
from fp8migrate.report.recipes import recipes_table
from tests.engine.stage import ENVIRONMENT
from tests.report import samples

PLAN = """
name: study
model: {num_layers: 2, hidden_size: 64, num_heads: 4, num_kv_heads: 2, ffn_hidden_size: 128}
training: {num_steps: 200, sequence_length: 32, micro_batch_size: 4, global_batch_size: 8, learning_rate: 1e-3, warmup_steps: 5}
candidate: {recipe: {kind: delayed, amax_history_len: 16}, keep_bf16: [lm_head]}
design: {branch: {at: 0.5, pairs: 4}}
"""
GIB = 2**30
TOKENS = 4 * 32
# Seconds a step, peak bytes, joules of a turn of two steps, each over 128 tokens.
MEASURED: dict[str, tuple[float, int, float]] = {
    "baseline": (2.0, 8 * GIB, 100.0),
    "block": (1.0, 10 * GIB, 60.0),
    "rowwise": (1.6, 8 * GIB, 75.0),
}


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedPlan:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(PLAN)
    return load_plan("study.yaml")


def lines(
    arms: Sequence[MeasuredArm], *, failed: str = "", losses: Sequence[float | None] = (5.0, 5.0)
) -> list[dict[str, Any]]:
    """Of a worker that measured these arms as MEASURED says."""
    environment = {"device": "cuda", "device_name": "NVIDIA H200", "torch": "2.11.0"}
    about = {"environment": environment, "cudnn": 91900, "energy_missing": None, "parameters": 8_030_000_000}
    found = [{"kind": "environment", "at": 0, "tokens_per_step": TOKENS, "weight_bytes": 2000, **about}]
    for arm in arms:
        seconds, peak, joules = MEASURED[arm.name]
        if arm.name == failed:
            found.append({"kind": "arm_failed", "at": 1, "arm": arm.name, "error": "UsageError: no"})
            continue
        settings = {"settings": arm.model_dump(mode="json"), "first_step_s": 3.0, "fp8_weights": 0, "fp8_share": 0.5}
        found.append({"kind": "arm", "at": 1, "arm": arm.name, **settings})
        step = {"forward": seconds / 4, "backward": seconds / 2, "optimizer": seconds / 4}
        turn = {"peak_bytes": peak, "held_bytes": {}, "joules": joules, "losses": list(losses)}
        found.append({"kind": "turn", "at": 2, "arm": arm.name, "round": 0, "steps": [step, step], **turn})
    return [*found, {"kind": "end", "at": 9}]


def measured(loaded: LoadedPlan, named: Sequence[str], **changes: Any) -> Measurement:
    arms = wanted_arms(loaded, named, ())
    return summarize("study", loaded.plan.model, loaded.plan.training, lines(arms, **changes))


def row(loaded: LoadedPlan, written: str, *, emulated: bool = False) -> RecipeRow:
    variant = parse_variant(written, loaded.plan)
    precision = measure.measured_precision(recipes.with_variant(loaded, variant).plan)
    gap = RowGap(mean=0.001, lower=0.0005, upper=0.0015, counted="4", start=("branch", None), by_pair=())
    return RecipeRow(
        recipe=variant.name,
        written=variant.written,
        verdict="PASS",
        code="PASS",
        emulated=emulated,
        gap=gap,
        penalty=None,
        training=gap,
        fp8_share=0.9,
        kernels=(12, 12),
        precision=precision,
    )


def written(loaded: LoadedPlan, rows: Sequence[RecipeRow], found: Measurement | None) -> tuple[dict[str, list[str]], str]:
    """The last three cells of every row of the table in the plan's folder, by recipe, and the line about speed."""
    home = Path("reports/study")
    home.mkdir(parents=True, exist_ok=True)
    keep_table(home, loaded, rows)
    if found is not None:
        (home / "measurement.json").write_text(found.model_dump_json())
    assert refresh_table(home) == "Table: reports/study/recipes.md"
    return speed_of(home)


def speed_of(home: Path) -> tuple[dict[str, list[str]], str]:
    text = (home / "recipes.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text if line.startswith("|")]
    assert cells[0][-3:] == ["Step, × BF16", "Peak memory, × BF16", "Energy a token, × BF16"]
    assert {len(each) for each in cells} == {12}
    return {each[0]: each[-3:] for each in cells[2:]}, text[-1]


def test_speed_memory_and_energy_stand_beside_the_verdict(loaded: LoadedPlan) -> None:
    """2 s of BF16 and 1 s; 8 GiB and 10; 100 J and 60, each of two steps."""
    rows = [row(loaded, each) for each in ("rowwise", "block", "emulated:block")]
    cells, about = written(loaded, rows, measured(loaded, ["block", "rowwise"]))
    assert cells == {
        "rowwise": ["1.25", "1.00 (8.0 GiB)", "0.75"],
        "block": ["2.00", "1.25 (10.0 GiB)", "0.60"],
        "emulated-block": ["—", "—", "—"],
    }
    assert about == (
        "Step: how many times as fast as BF16's; memory and energy: of BF16's, less is better. Measured by `measure` on "
        "NVIDIA H200, 8.03B parameters, 128 tokens a step, BF16 weights and AdamW states, fused modules (Transformer "
        "Engine) or compiled layers (torchao); verdicts are of the trainer with FP32 master weights."
    )


def test_where_nothing_was_measured_it_is_said_how_to(loaded: LoadedPlan) -> None:
    rows = [row(loaded, each) for each in ("block", "{kind: delayed, margin: 3, amax_history_len: 16}", "emulated:block")]
    cells, about = written(loaded, rows, None)
    assert set(map(tuple, cells.values())) == {("—", "—", "—")}
    assert (
        "`fp8migrate measure study.yaml --recipe '{kind: block}' --recipe '{amax_history_len: 16, kind: delayed, margin: 3}'`"
        in about
    )
    assert "emulated" not in about


def test_emulated_rows_have_no_speed_also_where_their_recipe_was_measured(loaded: LoadedPlan) -> None:
    """`backend: auto` emulates where there is no GPU with FP8."""
    cells, about = written(loaded, [row(loaded, "block", emulated=True)], measured(loaded, ["block"]))
    assert cells == {"block": ["—", "—", "—"]}
    assert about == "Speed, memory and energy: of emulated FP8 they are not measured."


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"micro_batch_size": 2}, "it is of another model or step: micro_batch_size 2, here 4"),
        ({"sequence_length": 64}, "it is of another model or step: sequence_length 64, here 32"),
        ({"model": None}, "it does not say of which model"),
    ],
)
def test_a_measurement_of_another_model_or_step_is_left_out(loaded: LoadedPlan, changes: dict[str, Any], why: str) -> None:
    found = measured(loaded, ["block"]).model_copy(update=changes)
    cells, about = written(loaded, [row(loaded, "block")], found)
    assert cells == {"block": ["—", "—", "—"]}
    assert about.startswith(f"The measurement that is there is left out: {why}. Speed, memory and energy")
    assert "measure study.yaml --recipe '{kind: block}'`" in about


def test_a_measurement_of_a_deeper_model_is_left_out_and_one_that_is_no_measurement(loaded: LoadedPlan) -> None:
    found = measured(loaded, ["block"])
    deeper = loaded.plan.model.model_copy(update={"num_layers": 32})
    _, about = written(loaded, [row(loaded, "block")], found.model_copy(update={"model": deeper}))
    assert "left out: it is of another model or step: num_layers 32, here 2." in about
    Path("reports/study/measurement.json").write_text('{"name": "study"')
    refresh_table(Path("reports/study"))
    cells, about = speed_of(Path("reports/study"))
    assert cells == {"block": ["—", "—", "—"]}
    assert "left out: measurement.json cannot be read, or is of another version." in about


def test_an_arm_of_the_same_name_with_other_layers_in_bf16_is_left_out(loaded: LoadedPlan) -> None:
    found = measured(loaded, ["block", "rowwise"])
    Path("study.yaml").write_text(PLAN.replace("[lm_head]", "[lm_head, attention]"))
    later = load_plan("study.yaml")
    cells, about = written(later, [row(later, "block"), row(loaded, "rowwise")], found)
    assert cells == {"block": ["—", "—", "—"], "rowwise": ["1.25", "1.00 (8.0 GiB)", "0.75"]}
    assert "block: measured with other settings (keep_bf16)." in about
    assert "compiled layers (torchao); verdicts" in about
    assert "Transformer Engine" not in about


def test_an_arm_that_failed_or_whose_losses_are_not_finite_has_no_speed(loaded: LoadedPlan) -> None:
    rows = [row(loaded, "block"), row(loaded, "rowwise")]
    cells, about = written(loaded, rows, measured(loaded, ["block", "rowwise"], failed="block"))
    assert cells == {"block": ["—", "—", "—"], "rowwise": ["1.25", "1.00 (8.0 GiB)", "0.75"]}
    assert "block: its measurement failed, measurement.md says why." in about
    cells, about = written(loaded, rows[:1], measured(loaded, ["block"], losses=(5.0, None)))
    assert cells == {"block": ["—", "—", "—"]}
    assert "block: measured with losses that are not finite." in about


def test_memory_and_energy_that_were_not_measured_are_no_numbers(loaded: LoadedPlan) -> None:
    found = measured(loaded, ["block"])
    without = tuple(arm.model_copy(update={"peak_bytes": None, "joules_per_token": None}) for arm in found.arms)
    cells, _ = written(loaded, [row(loaded, "block")], found.model_copy(update={"arms": without}))
    assert cells == {"block": ["2.00", "—", "—"]}


def test_rows_of_runs_that_diverged_are_read_back(loaded: LoadedPlan) -> None:
    by_pair = ((0, math.inf), (1, math.nan))
    gap = RowGap(mean=math.inf, lower=math.nan, upper=math.nan, counted="4 of 8", start=("branch", None), by_pair=by_pair)
    given = row(loaded, "block").model_copy(update={"gap": gap})
    written(loaded, [given], None)
    text = Path("reports/study/recipes.json").read_bytes()
    orjson.loads(text)  # JSON as everybody reads it: no bare NaN
    (found,) = RecipesTable.model_validate_json(text).rows
    assert found.gap is not None
    assert (found.gap.mean, found.gap.counted) == (math.inf, "4 of 8")
    assert math.isnan(found.gap.lower or 0.0)
    assert "| ∞ % | NaN % to NaN % | 4 of 8 |" in Path("reports/study/recipes.md").read_text()


def compared(real: dict[int, float], emulated: dict[int, float], loaded: LoadedPlan, **changes: Any) -> list[str]:
    """The table's lines of emulated against real, for block with these gaps by pair."""

    def with_gap(written: str, by_pair: dict[int, float], **changes: Any) -> RecipeRow:
        shown = row(loaded, written, emulated=written.startswith("emulated"))
        assert shown.gap is not None
        update = {"by_pair": tuple(by_pair.items()), **changes}
        return shown.model_copy(update={"gap": shown.gap.model_copy(update=update), "training": None})

    rows = (with_gap("block", real), with_gap("emulated:block", emulated, **changes), row(loaded, "rowwise"))
    table = RecipesTable(
        plan="study", path="study.yaml", model=loaded.plan.model, sequence_length=32, micro_batch_size=4, rows=rows
    )
    return [line for line in recipes_table(table, None).splitlines() if "Learned quality |" in line]


def test_emulated_recipes_are_compared_with_the_real_ones_pair_by_pair(loaded: LoadedPlan) -> None:
    """By hand: differences 1, 2 and 3 · 1e-4; mean 2, standard error 1/sqrt(3), t of 2 degrees at 97.5 %: 4.3027, so 2 ± 2.484.

    Pair 9 is in one alone.
    """
    real, emulated = {0: 0.001, 1: 0.003, 2: -0.002, 9: 1.0}, {2: -0.0017, 1: 0.0032, 0: 0.0011}
    expected = "| {kind: block} | Learned quality | +0.020 % | −0.005 % to +0.045 % | 3 | agree |"
    assert compared(real, emulated, loaded) == [expected]
    (line,) = compared(real, {pair: value + 0.01 for pair, value in emulated.items()}, loaded)
    assert line.endswith("| +1.02 % | +0.995 % to +1.04 % | 3 | differ |")


def test_emulated_and_real_that_cannot_be_compared_are_not(loaded: LoadedPlan) -> None:
    """One shared pair has no spread, NaN no mean, and another start is another run under the same number."""
    gaps = {0: 0.001, 1: 0.003}
    assert compared({0: 0.001}, gaps, loaded) == []
    assert compared(gaps, {0: 0.001, 1: math.nan}, loaded) == []
    assert compared(gaps, gaps, loaded, start=("screen", 0.5)) == []
    assert len(compared(gaps, gaps, loaded)) == 1


def test_rows_are_those_of_the_last_command_in_its_order(loaded: LoadedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are made up; the files are real. A measurement that is there already is read by every run."""
    report = samples.report(comparisons=[samples.comparison(emulated=False)])
    home = Path("reports/study")
    orders: list[list[str]] = []

    def end_backwards(plans: Sequence[LoadedPlan], *given: Any, **_: Any) -> None:
        shared, ended = given[0], given[3]
        shared.mkdir(parents=True, exist_ok=True)
        for number in reversed(range(len(plans))):
            ended(number, Study(report, {}))
            orders.append(list(speed_of(home)[0]))

    monkeypatch.setattr(recipes, "run_studies", end_backwards)

    def run(*named: str) -> list[list[str]]:
        orders.clear()
        run_variants(loaded, [parse_variant(text, loaded.plan) for text in named], Path("reports"), SilentObserver())
        return list(orders)

    assert run("rowwise", "block") == [["block"], ["rowwise", "block"]]
    (home / "measurement.json").write_text(measured(loaded, ["block", "rowwise"]).model_dump_json())
    assert run("block") == [["block"]]
    (kept,) = RecipesTable.model_validate_json((home / "recipes.json").read_bytes()).rows
    assert (kept.recipe, kept.verdict, kept.precision) == ("block", "PASS", wanted_arms(loaded, ["block"], ())[1].precision)
    assert speed_of(home)[0] == {"block": ["2.00", "1.25 (10.0 GiB)", "0.60"]}


def test_a_verdict_of_emulated_layers_alone_is_one_of_emulation() -> None:
    """A run that ended in phase 2 has no comparison."""
    for emulated in (True, False):
        report = samples.report(comparisons=[], integration=replace(samples.integration(), emulated=emulated))
        assert recipe_row("block", report, written="block", precision=None).emulated == emulated


def test_each_recipe_is_an_arm_on_the_library_that_has_it(loaded: LoadedPlan) -> None:
    named = ["delayed", "rowwise", "transformer_engine:block", "delayed"]
    found = wanted_arms(loaded, named, ["candidate+fp8_head", "baseline"])
    assert [(arm.name, arm.precision.backend) for arm in found] == [
        ("baseline", "bf16"),
        ("delayed-history-16", "transformer_engine"),
        ("rowwise", "torchao"),
        ("transformer_engine-block", "transformer_engine"),
        ("candidate+fp8_head", "transformer_engine"),
    ]
    assert (found[2].precision.recipe, found[3].precision.recipe) == (RowwiseRecipe(), BlockRecipe())
    # The plan's own recipe runs as the arm candidate does.
    assert found[1].precision == arm_of(loaded.plan, "candidate").precision


@pytest.mark.parametrize(
    ("text", "what", "next_step"),
    [
        ("emulated:block", "emulated speed is not measured", "Say --recipe '{kind: block}', or leave it out"),
        ("emulated:fixed", "emulated speed is not measured", "Leave it out: no library"),
        ("torchao:block", "torchao has no recipe block", "Say --recipe '{kind: block}', or leave it out"),
        ("transformer_engine:rowwise", "transformer_engine has no recipe rowwise", "Say --recipe '{kind: rowwise}', or"),
        ("fixed", "transformer_engine has no recipe fixed", "Leave it out: no library"),
        ("blok", "blok", "Name a kind"),
    ],
)
def test_what_has_no_speed_to_measure_is_refused(loaded: LoadedPlan, text: str, what: str, next_step: str) -> None:
    with pytest.raises(UserError) as refused:
        wanted_arms(loaded, ["block", text], ())
    assert refused.value.where == "--recipe"
    assert what in refused.value.what
    assert (refused.value.next_step or "").startswith(next_step)


def test_a_plan_that_is_emulated_has_no_speed_where_a_recipe_names_no_library(loaded: LoadedPlan) -> None:
    Path("study.yaml").write_text(PLAN.replace("candidate: {", "candidate: {backend: emulated, "))
    emulated = load_plan("study.yaml")
    with pytest.raises(
        UserError, match=r"emulated speed is not measured(?s:.)*Say --recipe 'transformer_engine:{kind: block}'"
    ):
        wanted_arms(emulated, ["block"], ())
    assert wanted_arms(emulated, ["transformer_engine:block"], ())[1].precision.backend == "transformer_engine"


def run_measure(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """The command, with a worker that writes `lines` of what it was asked for."""

    def worker(request: Path, output: Path, log: Path, tell: object) -> int:
        task = Measure.model_validate_json(request.read_bytes())
        output.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines(task.arms)))
        return 0

    monkeypatch.setattr(measure, "_run", worker)
    gpu = ENVIRONMENT.model_copy(update={"device": "cuda", "compute_capability": "9.0"})
    monkeypatch.setattr(measure, "probe", lambda *_: gpu)
    done = CliRunner().invoke(app, ["measure", "study.yaml", "--no-break-even", *arguments])
    return done.exit_code, done.output


def test_the_command_measures_recipes_and_writes_their_table_again(loaded: LoadedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = run_measure(monkeypatch, "--recipe", "block")
    assert (code, "Table" in said, Path("reports/study/recipes.md").exists()) == (0, False, False), said
    written(loaded, [row(loaded, "rowwise"), row(loaded, "block")], None)
    code, said = run_measure(monkeypatch, "--recipe", "block", "--recipe", "{kind: rowwise}")
    assert (code, "Table: reports/study/recipes.md" in said) == (0, True), said
    found = Measurement.model_validate_json(Path("reports/study/measurement.json").read_bytes())
    assert [arm.name for arm in found.arms] == ["baseline", "block", "rowwise"]
    assert (found.model, found.sequence_length, found.micro_batch_size) == (loaded.plan.model, 32, 4)
    cells, _ = speed_of(Path("reports/study"))
    assert cells == {"rowwise": ["1.25", "1.00 (8.0 GiB)", "0.75"], "block": ["2.00", "1.25 (10.0 GiB)", "0.60"]}


def test_where_no_gpu_has_fp8_nothing_is_measured_and_no_report_lost(
    loaded: LoadedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Path("reports/study/measurement.md")
    report.parent.mkdir(parents=True)
    report.write_text("of an H200")
    for capability in (None, "8.0"):
        own = ENVIRONMENT.model_copy(update={"compute_capability": capability, "device_name": "a laptop"})
        monkeypatch.setattr(measure, "probe", lambda *_, own=own: own)
        done = CliRunner().invoke(app, ["measure", "study.yaml", "--recipe", "block"])
        assert (done.exit_code, "and a laptop has none: block" in done.output) == (2, True), done.output
    assert report.read_text() == "of an H200"


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "inf"])
def test_no_time_to_measure_in_is_refused(loaded: LoadedPlan, seconds: str) -> None:
    done = CliRunner().invoke(app, ["measure", "study.yaml", "--seconds", seconds])
    assert (done.exit_code, "--seconds" in done.output, "Traceback" in done.output) == (2, True, False), done.output


def test_an_fp8_arm_that_failed_is_no_success(loaded: LoadedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = lines

    def without_block(arms: tuple[MeasuredArm, ...]) -> list[dict[str, Any]]:
        return [line for line in everything(arms) if line.get("arm") != "block"]

    monkeypatch.setattr("tests.engine.test_recipe_table.lines", without_block)
    assert run_measure(monkeypatch, "--recipe", "block")[0] == 5


def test_the_command_refuses_emulated_recipes_before_anything_runs(loaded: LoadedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = run_measure(monkeypatch, "--recipe", "block", "--recipe", "emulated:block")
    assert (code, "--recipe: emulated:{kind: block}: emulated speed is not measured" in said) == (2, True), said
    assert not Path("reports").exists()


def test_a_table_that_cannot_be_read_stops_no_measurement(loaded: LoadedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("reports/study").mkdir(parents=True)
    Path("reports/study/recipes.json").write_text("{")
    code, said = run_measure(monkeypatch, "--recipe", "block")
    assert (code, "recipes.json cannot be read" in said) == (0, True), said
