"""Every command: parse, call, print, exit code; nothing else. What a command needs is imported when it runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fp8migrate import __version__
from fp8migrate.errors import ExitCode, UserError

if TYPE_CHECKING:
    from fp8migrate.engine.study import Study
    from fp8migrate.terminal import TerminalObserver
    from fp8migrate.verdict import VerdictName

EXIT_CODES = (
    "Exit codes: 0 pass · 1 our bug · 2 usage or plan · 3 fail · 4 inconclusive or screened · "
    "5 stopped from outside (full disk, signal), so there is no evidence."
)

app = typer.Typer(
    name="fp8migrate",
    help=f"Evidence for moving a training run from BF16 to FP8: paired runs, compared, with a verdict.\n\n{EXIT_CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a YAML file (`fp8migrate init` writes one).")]
ReportsFolder = Annotated[Path, typer.Option("--reports", metavar="FOLDER", help="Where reports go, one folder per plan name.")]
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
) -> None:
    """Look at this machine: what can run here, in which precision, and what is missing."""
    with _guarded():
        from fp8migrate.engine.doctor import examine

        examination = examine(device)
        for line in examination.lines:
            typer.echo(line)
        if examination.problem:
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
def run(file: PlanFile, reports: ReportsFolder = Path("reports"), force: Force = False) -> None:
    """Run all phases, each when the one before it passed, and write the report. Finished work is reused."""
    _run(file, reports, only=None, force=force)


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
    format_name: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Read them as this format, or as a YAML file describes.")
    ] = "",
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="OURS=THEIRS", help="Name a column: training_loss=ce, step=t, run=job. Repeatable."),
    ] = None,
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
                typer.echo(f"fp8migrate: {error}", err=True)
                continue
            for line in lines:
                typer.echo(line)
        if found.passed_over:
            typer.echo(describe_passed_over(found.passed_over))
        if refused:
            raise typer.Exit(ExitCode.USAGE)


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


def _observer() -> TerminalObserver:
    from rich.console import Console

    from fp8migrate.terminal import TerminalObserver

    return TerminalObserver(Console(stderr=True))


@contextmanager
def _guarded() -> Iterator[None]:
    """Errors for users become one message and their exit code; anything else is our bug, with its traceback and exit 1."""
    try:
        yield
    except UserError as error:
        typer.echo(f"fp8migrate: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        typer.echo(f"fp8migrate: the output cannot be written: {error.strerror}", err=True)
        raise typer.Exit(ExitCode.INFRASTRUCTURE) from None
    except KeyboardInterrupt:
        typer.echo("fp8migrate: stopped by Ctrl-C\nNothing is lost: give the same command again.", err=True)
        raise typer.Exit(ExitCode.INFRASTRUCTURE) from None
