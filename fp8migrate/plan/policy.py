"""What finished runs are judged by: the options of `compare`, or the YAML file of `gate`. Fixed before anything is read."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from fp8migrate.plan.schema import NAMED_MARGINS, Serve
from fp8migrate.settings import InconsistentError, Settings

# critical decides. supporting: its failure turns a PASS into INCONCLUSIVE and never fails the gate. advisory is told.
Tier = Literal["critical", "supporting", "advisory"]
# What logs cannot prove, by the names that `require` and `attest` use.
EvidenceName = Literal["data", "configuration", "fp8", "schedule"]
Margin = Literal["standard", "strict", "fp4"] | Annotated[float, Field(gt=0, lt=0.5)]


def _names_who(said: str) -> bool:
    who, colon, what = said.partition(":")
    return bool(who.strip() and colon and what.strip())


def margin_fraction(margin: str | float) -> float:
    return NAMED_MARGINS[margin] if isinstance(margin, str) else margin


class Logs(Settings):
    """Logs of one side."""

    logs: tuple[str, ...] = Field((), description="files, folders or patterns: training logs and lm-eval results")
    runs: str = Field("", description="of files with several runs, those whose name matches this pattern (*bf16*_long)")
    skip_runs: str = Field("", description="of those, the ones to leave out, by a pattern")
    bundle: str = Field("", description="instead of logs: a stored baseline (`compare --store FILE`)")

    @model_validator(mode="after")
    def one_of(self) -> Self:
        if bool(self.logs) == bool(self.bundle):
            raise InconsistentError({"": "name either logs or a bundle"})
        return self


class LossMetric(Settings):
    """A loss that is judged."""

    tier: Tier = Field("critical", description="critical, supporting or advisory")
    margin: Margin | None = Field(None, description="its own margin; the policy's where absent")


class AtLeast(Settings):
    """A ratio candidate / baseline that must not be below a limit."""

    tier: Tier = Field("critical", description="critical, supporting or advisory")
    at_least: float = Field(gt=0, description="1.1: the candidate must be 10 % faster")


class AtMost(Settings):
    """A ratio candidate / baseline that must not be above a limit."""

    tier: Tier = Field("critical", description="critical, supporting or advisory")
    at_most: float = Field(gt=0, description="1.0: the candidate must not take more")


class WorthMetric(Settings):
    """The worth-it verdict (PARITY.md 8)."""

    tier: Tier = Field("critical", description="critical, supporting or advisory")
    at_least: float = Field(1.05, gt=0, description="speed-up at equal quality that makes the move worth it")


class EvalsMetric(Settings):
    """Item evaluations (PARITY.md 7). Margins are shares of the items: 0.01 is one point."""

    tier: Tier = Field("critical", description="critical, supporting or advisory")
    margin: float = Field(0.01, gt=0, lt=0.5, description="largest acceptable loss of the macro average")
    task_margin: float = Field(0.02, gt=0, lt=0.5, description="largest acceptable loss of one task")


class Metrics(Settings):
    """What is judged, each with its tier. Without any loss named, the validation loss where all runs have it, else training."""

    validation_loss: LossMetric | None = Field(None, description="as logged, at the last point")
    training_loss: LossMetric | None = Field(None, description="robust mean of the last tenth")
    speed: AtLeast | None = Field(None, description="candidate / baseline, warm-up left out")
    memory: AtMost | None = Field(None, description="peak memory, candidate / baseline")
    grad_norm: AtMost | None = Field(None, description="median gradient norm of the last tenth, candidate / baseline")
    worth_it: WorthMetric | None = Field(None, description="speed-up at equal quality")
    evals: EvalsMetric | None = Field(None, description="lm-eval results of both sides")

    def tier_of(self, metric: str) -> Tier:
        """advisory for what is measured and not named; losses and evals decide unless the policy says otherwise."""
        found = getattr(self, metric, None)
        if found is not None:
            tier: Tier = found.tier
            return tier
        return "critical" if metric in ("validation_loss", "training_loss", "evals") else "advisory"


class Attested(Settings):
    """What logs cannot prove, by who answers for it: `J. Doe: kernel trace of run 7`."""

    data: str | None = Field(None, description="both arms saw the same data")
    configuration: str | None = Field(None, description="nothing but precision differs between the arms")
    fp8: str | None = Field(None, description="the candidate ran in FP8, the baseline did not")
    schedule: str | None = Field(None, description="the learning rate ends where it is meant to")

    @property
    def said(self) -> dict[EvidenceName, str]:
        names: tuple[EvidenceName, ...] = get_args(EvidenceName)
        return {name: text for name in names if (text := getattr(self, name)) is not None}


class Policy(Settings):
    """One question about finished runs."""

    name: str = Field(
        "compare",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="reports go to reports/<name>/",
        json_schema_extra={"expected": "1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"},
    )
    baseline: Logs = Field(description="the BF16 runs")
    candidate: Logs = Field(description="the FP8 runs")
    floor: Logs | None = Field(None, description="further BF16 runs: how far equal runs end apart")
    format: str = Field("", description="log format, where it is not recognised (see `inspect --help`)")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="names in the logs by ours: {training_loss: ce}",
        json_schema_extra={"expected": "a mapping of our names to those in the logs"},
    )
    margin: Margin = Field(
        "standard",
        description="largest acceptable relative loss gap: standard 0.25 %, strict 0.10 %, fp4 1.0 %, or a fraction (0.005)",
    )
    serve: Serve = Field("bf16", description="precision in which the model will be served; fp8: losses count as logged")
    serve_margin: Annotated[float, Field(gt=0, lt=0.5)] | None = Field(
        None, description="margin of losses as logged under serve: fp8; the margin itself where absent"
    )
    forward_penalty: Annotated[float, Field(ge=0, lt=0.5)] | None = Field(
        None,
        description="what the FP8 forward alone adds to the logged losses, as a fraction; 0: they are under a BF16 forward",
    )
    metrics: Metrics = Field(Metrics(), description="what is judged, by tier")
    require: tuple[EvidenceName, ...] = Field(
        (), description="evidence without which nothing passes: data, configuration, fp8, schedule"
    )
    attest: Attested = Field(Attested(), description="what logs cannot prove, by who says so: 'J. Doe: kernel trace of run 7'")

    @model_validator(mode="after")
    def consistent(self) -> Self:
        silent = [name for name, said in self.attest.said.items() if not _names_who(said)]
        problems = {f"attest.{name}": "say who says what: 'WHO: what'" for name in silent}
        metrics = self.metrics
        losses = [loss.tier for loss in (metrics.validation_loss, metrics.training_loss) if loss is not None]
        tiers = [*losses, *([metrics.evals.tier] if metrics.evals else [])]
        if losses and "critical" not in tiers:
            problems["metrics"] = "nothing critical says whether FP8 is as good: make a loss or the evals critical"
        if self.candidate.bundle:
            problems["candidate.bundle"] = "a bundle is a baseline; name the candidate's logs"
        if problems:
            raise InconsistentError(problems)
        return self

    @property
    def margin_fraction(self) -> float:
        return margin_fraction(self.margin)

    @property
    def serve_margin_fraction(self) -> float:
        return self.margin_fraction if self.serve_margin is None else self.serve_margin
