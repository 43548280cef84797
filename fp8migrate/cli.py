"""Every command: parse, call, print, exit code; nothing else. What a command needs is imported when it runs."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from fp8migrate import __version__
from fp8migrate.errors import ExitCode, UsageError, UserError

if TYPE_CHECKING:
    from fp8migrate.engine.study import Study
    from fp8migrate.plan.policy import Policy
    from fp8migrate.terminal import TerminalObserver
    from fp8migrate.verdict import VerdictName

EXIT_CODES = (
    "Exit codes: 0 pass · 1 our bug · 2 usage or plan · 3 fail · 4 inconclusive or screened · "
    "5 stopped from outside (full disk, signal), so there is no evidence."
)

# Options that take every word up to the next option, as a shell user expects of a list of files.
_GREEDY = ("--against", "--baseline", "--floor")
# Options that hold for the side of `--against` where they stand behind it.
_SIDED = {"--runs": "--against-runs", "--skip-runs": "--against-skip-runs"}


class Sides(TyperCommand):
    """`compare a b --against d e f` is two against three."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(args: list[str]) -> list[str]:
    """`--against d e --runs x` → `--against d --against e --against-runs x`. What stands behind `--` is left alone."""
    found: list[str] = []
    greedy, candidate = "", False
    for place, word in enumerate(args):
        if word == "--":
            return [*found, *args[place:]]
        if word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            candidate = candidate or name == "--against"
            greedy = name if name in _GREEDY else ""
            swapped = _SIDED.get(name, name) if candidate else name
            if not greedy or equals:
                found.append(f"{swapped}{equals}{value}")
            elif place + 1 == len(args) or (args[place + 1].startswith("-") and args[place + 1] != "-"):
                found.append(word)  # nothing follows: the parser says so
        elif greedy:
            found += [greedy, word]
        else:
            found.append(word)
    return found


app = typer.Typer(
    name="fp8migrate",
    help=f"Evidence for moving a training run from BF16 to FP8: paired runs, compared, with a verdict.\n\n{EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a YAML file (`fp8migrate init` writes one).")]
ReportsFolder = Annotated[Path, typer.Option("--reports", metavar="FOLDER", help="Where reports go, one folder per plan name.")]
FormatName = Annotated[
    str, typer.Option("--format", metavar="NAME", help="Read the logs as this format, or as a YAML file describes.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="OURS=THEIRS", help="Name a column: training_loss=ce, step=t, run=job. Repeatable."),
]
MarginOption = Annotated[
    str, typer.Option("--margin", metavar="NAME|X", help="standard (0.25 %), strict (0.10 %), fp4 (1.0 %), 0.005 or 0.5%.")
]
ServeOption = Annotated[str, typer.Option("--serve", metavar="bf16|fp8", help="Precision in which it will be served.")]
ForwardPenalty = Annotated[
    str, typer.Option("--forward-penalty", metavar="X", help="What the FP8 forward alone adds to the losses; 0: BF16 forward.")
]
RecipeNames = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="Judge this recipe, not the plan's: a kind (block) or '{kind: delayed, margin: 2}'. Repeatable: one table.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Go on past a phase that did not pass. The report's headline will say so.")
]


def main() -> None:
    """The console script."""
    app()


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"fp8migrate {__version__}")
        raise typer.Exit


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; the plan is named after the file.")] = Path(
        "plan.yaml"
    ),
) -> None:
    """Write a commented plan to start from. An existing file is never overwritten."""
    with _guarded():
        from fp8migrate.errors import UsageError
        from fp8migrate.plan.template import starting_plan

        text = starting_plan(path.stem)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise UsageError("exists already", where=str(path), next_step="Name another file.") from None
        except OSError as error:
            raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
        typer.echo(f"Wrote {path}. Next: `fp8migrate plan {path}` shows what it would do and cost.")


@app.command()
def doctor(
    device: Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Which device to look at.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON document.")] = False,
) -> None:
    """Look at this machine: every recipe on every backend with yes or no, the reason, and what to do about it."""
    with _guarded():
        from fp8migrate.engine.doctor import examine

        diagnosis = examine(device)
        if as_json:
            typer.echo(diagnosis.model_dump_json())
        else:
            from shutil import get_terminal_size

            from fp8migrate.report.doctor import describe_machine

            for line in describe_machine(diagnosis, min(get_terminal_size((100, 24)).columns, 120)):
                typer.echo(line)
        if not diagnosis.can_train:
            raise typer.Exit(ExitCode.USAGE)


@app.command()
def plan(
    file: PlanFile,
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="Estimate for this GPU instead of measuring here.")] = "",
) -> None:
    """Show the jobs of a plan, what they cost and how likely the design is to decide. Runs none of them."""
    with _guarded():
        from fp8migrate.engine.preflight import preflight
        from fp8migrate.plan.load import load_plan

        loaded = load_plan(file)
        preflight(loaded)
        from fp8migrate.engine.forecast import describe, forecast_plan

        for line in describe(loaded.plan, forecast_plan(loaded.plan, gpu)):
            typer.echo(line)


@app.command()
def baseline(file: PlanFile, reports: ReportsFolder = Path("reports")) -> None:
    """Phase 1: train in BF16. Does it learn, how much does it scatter; leaves a sealed baseline bundle."""
    _run(file, reports, only="baseline", force=False)


@app.command()
def integration(file: PlanFile, reports: ReportsFolder = Path("reports"), force: Force = False) -> None:
    """Phase 2: does FP8 run here and get its numbers right. Needs a baseline that passed."""
    _run(file, reports, only="integration", force=force)


@app.command(name="small-scale")
def small_scale(file: PlanFile, reports: ReportsFolder = Path("reports"), force: Force = False) -> None:
    """Phase 3: paired BF16 and FP8 runs of a smaller model, and a verdict. Needs an integration that passed."""
    _run(file, reports, only="small_scale", force=force)


@app.command()
def run(file: PlanFile, reports: ReportsFolder = Path("reports"), force: Force = False, recipe: RecipeNames = None) -> None:
    """Run all phases, each when the one before it passed, and write the report. Finished work is reused."""
    if recipe:
        _run_recipes(file, reports, recipe, force=force)
    else:
        _run(file, reports, only=None, force=force)


@app.command()
def measure(
    file: PlanFile,
    reports: ReportsFolder = Path("reports"),
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", metavar="NAME", help="baseline, control, candidate, candidate+LEVER…; repeatable."),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe", metavar="RECIPE", help="BF16 and this recipe, as `run --recipe` takes it; into its table. Repeatable."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Turns of every arm.")] = 3,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps of one turn.")] = 5,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="No turn is begun after so long.")] = 540.0,
    levers: Annotated[bool, typer.Option("--levers/--no-levers", help="Also time attention and GEMMs alone.")] = True,
    break_even: Annotated[
        bool,
        typer.Option(
            "--break-even/--no-break-even", help="Also time each linear shape: which layers gain, and the step foretold."
        ),
    ] = True,
) -> None:
    """Measure whole training steps of the plan's model: BF16, the candidate, and levers; speed, memory, energy."""
    with _guarded():
        if not 0 < seconds < math.inf:
            raise UsageError(f"{seconds:g} is no time to measure in", where="--seconds", next_step="Give seconds above 0.")
        from fp8migrate.plan.load import load_plan

        loaded = load_plan(file)
        from fp8migrate.engine.measure import measure_plan
        from fp8migrate.engine.recipe_arms import wanted_arms
        from fp8migrate.engine.recipe_table import refresh_table
        from fp8migrate.report.measurement import verdict
        from fp8migrate.report.words import clean

        arms = wanted_arms(loaded, recipe or (), arm or ())
        found = measure_plan(
            loaded, reports, arms=arms, rounds=rounds, steps=steps, seconds=seconds, levers=levers, tell=typer.echo
        )
        typer.echo(f"\n{verdict(found)}")
        for name, why in found.failed.items():
            typer.echo(clean(f"  {name} failed: {why.splitlines()[0]}"))
        typer.echo(f"Report: {reports / loaded.plan.name / 'measurement.md'}")
        if table := refresh_table(reports / loaded.plan.name):
            typer.echo(table)
        if break_even and found.environment.get("device") == "cuda":
            from fp8migrate.engine.break_even import break_even_plan

            for each in break_even_plan(loaded.plan, arms, found, reports / loaded.plan.name, seconds):
                typer.echo(clean(f"{each.name}: {each.in_words}"))
        asked = {each.name for each in arms if each.precision.recipe is not None}
        measured = found.arms and (not asked or asked & {each.name for each in found.arms})
        raise typer.Exit(ExitCode.PASS if measured and found.complete else ExitCode.INFRASTRUCTURE)


@app.command()
def report(
    file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, or the report folder of one.")],
    reports: ReportsFolder = Path("reports"),
    force: Force = False,
) -> None:
    """Write the report again from what has been run. Runs nothing, needs no torch."""
    with _guarded():
        from fp8migrate.engine.study import plan_of, report_study

        study = report_study(plan_of(file, reports), reports_of(file, reports), _observer(), force=force)
        _conclude(study)


@app.command()
def inspect(
    logs: Annotated[list[str], typer.Argument(metavar="LOG…", help="Files, folders, patterns, or - for standard input.")],
    format_name: FormatName = "",
    columns: Columns = None,
) -> None:
    """Show what is understood of training logs: series, steps, digits, gaps, resumes, and what is not understood."""
    with _guarded():
        from fp8migrate.records.find import find_sources
        from fp8migrate.records.readers import read_log
        from fp8migrate.records.readers.base import Options, parse_columns
        from fp8migrate.report.inspection import describe_log, describe_passed_over

        options = Options(format_name, parse_columns(columns or []))
        found = find_sources(logs, format_name=format_name)
        refused = 0
        for source in found.sources:
            try:
                lines = describe_log(read_log(source, options))
            except UserError as error:
                refused += 1
                typer.echo(f"fp8migrate: {_printable(error)}", err=True)
                continue
            for line in lines:
                typer.echo(line)
        if found.passed_over:
            typer.echo(describe_passed_over(found.passed_over))
        if refused:
            raise typer.Exit(ExitCode.USAGE)


@app.command(cls=Sides)
def compare(
    logs: Annotated[list[str], typer.Argument(metavar="BASELINE…", help="The BF16 runs: logs, folders, patterns; FILE::RUN.")],
    against: Annotated[list[str], typer.Option("--against", metavar="CANDIDATE…", help="The FP8 runs, up to the next option.")],
    floor: Annotated[
        list[str] | None, typer.Option("--floor", metavar="LOG…", help="Further BF16 runs: how far equal runs end apart.")
    ] = None,
    runs: Annotated[
        str, typer.Option("--runs", metavar="PATTERN", help="Of files with several runs, these; for the side it stands on.")
    ] = "",
    skip_runs: Annotated[str, typer.Option("--skip-runs", metavar="PATTERN", help="But not these.")] = "",
    against_runs: Annotated[str, typer.Option("--against-runs", hidden=True)] = "",
    against_skip_runs: Annotated[str, typer.Option("--against-skip-runs", hidden=True)] = "",
    margin: MarginOption = "standard",
    serve: ServeOption = "bf16",
    serve_margin: Annotated[
        str, typer.Option("--serve-margin", metavar="X", help="Margin of logged losses under --serve fp8.")
    ] = "",
    forward_penalty: ForwardPenalty = "",
    endpoint: Annotated[
        list[str] | None, typer.Option("--endpoint", metavar="LOSS", help="validation_loss, training_loss; repeatable.")
    ] = None,
    min_speedup: Annotated[
        float | None, typer.Option("--min-speedup", metavar="X", help="Fail below this speed, candidate / baseline.")
    ] = None,
    max_memory: Annotated[
        float | None, typer.Option("--max-memory", metavar="X", help="Fail above this peak memory, candidate / baseline.")
    ] = None,
    attest: Annotated[
        list[str] | None,
        typer.Option("--attest", metavar="NAME='WHO: WHAT'", help="Answer for data, configuration, fp8, schedule."),
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option("--require", metavar="NAME", help="Nothing passes while this is not known. Repeatable.")
    ] = None,
    format_name: FormatName = "",
    columns: Columns = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the report's folder.")] = "compare",
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="FILE", help="Keep the baseline in FILE, for `baseline: {bundle: FILE}` of a gate policy."
        ),
    ] = "",
    reports: ReportsFolder = Path("reports"),
) -> None:
    """Judge finished runs from their logs: is FP8 as good, and is it worth it? Needs no plan, no torch, no GPU."""
    with _guarded():
        from fp8migrate.engine.options import policy_of

        policy = policy_of(
            logs=logs,
            runs=runs,
            skip_runs=skip_runs,
            against=against,
            against_runs=against_runs,
            against_skip_runs=against_skip_runs,
            floor=floor or [],
            margin=margin,
            serve=serve,
            serve_margin=serve_margin,
            forward_penalty=forward_penalty,
            endpoint=endpoint or [],
            min_speedup=min_speedup,
            max_memory=max_memory,
            attest=attest or [],
            require=require or [],
            format_name=format_name,
            columns=columns or [],
            name=name,
        )
        _judge(policy, reports, folder=None, store=store)


@app.command()
def gate(
    file: Annotated[Path, typer.Argument(metavar="POLICY", help="The policy, a YAML file; its paths are relative to it.")],
    reports: ReportsFolder = Path("reports"),
) -> None:
    """Judge finished runs by a policy file, for CI: tiers, margins, required evidence; the exit code is the verdict."""
    with _guarded():
        from fp8migrate.plan.load import load_policy

        _judge(load_policy(file), reports, folder=file.resolve().parent)


@app.command(cls=Sides)
def watch(
    log: Annotated[str, typer.Argument(metavar="RUN", help="The log of the FP8 run, as it grows; FILE::RUN.")],
    baseline: Annotated[
        list[str], typer.Option("--baseline", metavar="LOG…", help="The BF16 run, or several: their mean is the curve.")
    ],
    floor: Annotated[
        list[str] | None, typer.Option("--floor", metavar="LOG…", help="Further BF16 runs: how far equal runs lie apart.")
    ] = None,
    margin: MarginOption = "standard",
    serve: ServeOption = "bf16",
    forward_penalty: ForwardPenalty = "",
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="Time between two looks at the log.")] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Judge the log as it stands and stop.")] = False,
    format_name: FormatName = "",
    columns: Columns = None,
) -> None:
    """Follow a live FP8 run by its log and exit with 3 as soon as it is worse than BF16. It never says that a run passes."""
    with _guarded():
        from fp8migrate.engine.watch import request_of, watch_run

        request = request_of(
            run=log,
            baseline=baseline,
            floor=floor or [],
            margin=margin,
            serve=serve,
            forward_penalty=forward_penalty,
            every=every,
            once=once,
            format_name=format_name,
            columns=columns or [],
        )
        raise typer.Exit(watch_run(request))


def reports_of(file: Path, reports: Path) -> Path:
    """A report folder given by its path lies where it lies."""
    return Path(os.path.relpath(file.resolve().parent)) if file.is_dir() else reports


def _run(file: Path, reports: Path, *, only: str | None, force: bool) -> None:
    with _guarded():
        from fp8migrate.engine.preflight import preflight
        from fp8migrate.plan.load import load_plan

        loaded = load_plan(file)
        preflight(loaded)
        # Only now: a plan with a mistake is refused at once, not after seconds of imports.
        from fp8migrate.engine.study import run_study

        observer = _observer()
        try:
            study = run_study(loaded, reports, observer, only=only, force=force)
        finally:
            observer.close()
        if only in ("baseline", "integration"):
            _conclude_phase(study, only)
        else:
            _conclude(study)


def _run_recipes(file: Path, reports: Path, named: list[str], *, force: bool) -> None:
    """The plan under each recipe; the exit code is that of the worst verdict."""
    with _guarded():
        from fp8migrate.engine.recipe_table import TABLE
        from fp8migrate.engine.recipes import parse_variant, run_variants
        from fp8migrate.plan.load import load_plan

        loaded = load_plan(file)
        variants = list(dict.fromkeys(parse_variant(text, loaded.plan) for text in named))
        observer = _observer()
        try:
            studies = run_variants(loaded, variants, reports, observer, force=force)
        finally:
            observer.close()
        codes = [_exit_code(study.report.verdict.name) for study in studies]
        table = reports / loaded.plan.name / TABLE
        typer.echo(table.read_text(encoding="utf-8"))
        typer.echo(f"Table: {table}")
        worst = next((code for code in (ExitCode.FAIL, ExitCode.INCONCLUSIVE) if code in codes), ExitCode.PASS)
        raise typer.Exit(worst)


def _conclude(study: Study) -> None:
    """The verdict and the path of the report, last of all, and the exit code that says the same."""
    verdict = study.report.verdict
    for line in _last_words(study):
        typer.echo(line)
    raise typer.Exit(_exit_code(verdict.name))


def _conclude_phase(study: Study, name: str) -> None:
    """One phase's own answer: a phase before the pairs passes or not, and is no verdict on FP8."""
    phase = next(phase for phase in study.report.phases if phase.name == name)
    bad = [result for result in phase.results if result.status in ("fail", "inconclusive") and not result.advisory]
    typer.echo(f"\n{name}: {phase.state}")
    for result in bad or phase.results:
        typer.echo(f"  {result.check}: {result.summary}")
    typer.echo(f"Report: {study.files['html']}")
    codes = {"passed": ExitCode.PASS, "failed": ExitCode.FAIL}
    raise typer.Exit(codes.get(phase.state, ExitCode.INCONCLUSIVE))


def _last_words(study: Study) -> Iterator[str]:
    report = study.report
    yield ""
    yield report.headline
    yield f"  {report.verdict.why}"
    if report.verdict.next_step:
        yield f"  Next: {report.verdict.next_step}"
    yield f"Report: {study.files['html']}"


def _exit_code(verdict: VerdictName) -> ExitCode:
    codes = {"PASS": ExitCode.PASS, "FAIL": ExitCode.FAIL}
    return codes.get(verdict, ExitCode.INCONCLUSIVE)


def _judge(policy: Policy, reports: Path, *, folder: Path | None, store: str = "") -> None:
    """Say the verdict at once, then write the report, then exit with what the verdict says."""
    import shlex
    import sys
    from datetime import UTC, datetime

    from fp8migrate.engine.compare import judge, policy_text, refuse_to_store, store_baseline
    from fp8migrate.log_verdict import log_report, verdict_lines
    from fp8migrate.report.inspection import safe_line

    created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if store:
        refuse_to_store(Path(store))  # before anything is judged, not after
    judged = judge(policy, folder=folder)
    for note in judged.notes:
        typer.echo(f"note: {safe_line(note)}", err=True)
    report = log_report(
        policy,
        policy_text(policy),
        judged.comparisons,
        judged.results,
        items=judged.items,
        reproduce=(shlex.join(["fp8migrate", *sys.argv[1:]]),),
        created=created,
        version=__version__,
    )
    for line in verdict_lines(report):
        typer.echo(safe_line(line, most=2000))
    from fp8migrate.report import add_to_job_summary, write_all

    files = write_all(report, reports / policy.name)
    add_to_job_summary(files["md"])
    if store and report.verdict.code == "BASELINE_UNHEALTHY":
        typer.echo("Baseline not stored: it did not learn.")
    elif store:
        store_baseline(policy, Path(store), version=__version__, created=created)
        typer.echo(f"Baseline stored: {store}")
    typer.echo(f"Report: {files['html']}")
    raise typer.Exit(_exit_code(report.verdict.name))


def _observer() -> TerminalObserver:
    from rich.console import Console

    from fp8migrate.terminal import TerminalObserver

    return TerminalObserver(Console(stderr=True))


def _printable(error: UserError) -> str:
    """The names in a message are a user's: what a terminal would obey is shown, not obeyed."""
    from fp8migrate.report.words import clean

    return clean(str(error))


@contextmanager
def _guarded() -> Iterator[None]:
    """Errors for users become one message and their exit code; anything else is our bug, with its traceback and exit 1."""
    try:
        yield
    except UserError as error:
        typer.echo(f"fp8migrate: {_printable(error)}", err=True)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        typer.echo(f"fp8migrate: the output cannot be written: {error.strerror}", err=True)
        raise typer.Exit(ExitCode.INFRASTRUCTURE) from None
    except KeyboardInterrupt:
        typer.echo("fp8migrate: stopped by Ctrl-C\nNothing is lost: give the same command again.", err=True)
        raise typer.Exit(ExitCode.INFRASTRUCTURE) from None
