"""The audit of runs that somebody else started: what their configuration says, and what no log can prove."""

import re
from collections.abc import Mapping, Sequence

from fp8migrate.evidence.schema import Obstacle
from fp8migrate.plan.audit import AuditRow
from fp8migrate.plan.policy import EvidenceName
from fp8migrate.records.configuration import normal
from fp8migrate.records.logs import LogRecord

# Rows for what a reader of a verdict relies on and logs cannot show, by the names of `--attest` and `require`.
EVIDENCE_ROWS: Mapping[EvidenceName, str] = {
    "data": "same data",
    "configuration": "same configuration",
    "fp8": "FP8 ran",
    "schedule": "learning rate decayed",
}

# Where things are kept and what a run is called: no number depends on it. Paths of data and of starting weights are not among
# them, nor are names of models or optimizers.
_IDENTITY = re.compile(
    r"(^|\.)(seed|data_seed|(wandb_|mlflow_)?(run|exp|experiment|job|project)_?(name|id|dir)|name|id|uid|user|host(name)?|port"
    r"|date|time|timestamp|master_addr|(local_|node_)?rank|comment|notes?|tags?|project|entity|resume(_from(_checkpoint)?)?"
    r"|overwrite_output_dir|hub_model_id|local_dir|work_?dir|test_type)$"
    r"|(^|[._])(output|out|save|log|logs|logging|tensorboard|tb|wandb|profile|profiler|dump|cache|data_cache|checkpoint|ckpt)"
    r"_?(dir|path|folder|file|root)$|(^|\.)(output|save)$",
    re.IGNORECASE,
)
# Where a run starts from. It may differ only where each arm goes on from its own checkpoints.
_LOAD = re.compile(r"(^|[._])load(_dir|_path)?$", re.IGNORECASE)
_LOGGING = re.compile(r"(^|[._])(wandb|tensorboard|mlflow|comet|clearml|logging|report_to)([._]|$)", re.IGNORECASE)
_FP8 = re.compile(r"fp8|float8|mxfp8|nvfp4|fp4|mx_?recipe|amax|delayed_scaling", re.IGNORECASE)
_PRECISION = re.compile(
    r"(^|[._])(mixed_precision|precision|dtype|torch_dtype|autocast_dtype|compute_dtype|param_dtype)$", re.IGNORECASE
)
_BF16_VALUES = re.compile(r"^(torch\.)?(bf16|bfloat16)([-_](true|mixed))?$", re.IGNORECASE)
_FP16 = re.compile(r"(^|[._])(fp16|float16|half)$|^(torch\.)?(fp16|float16|half|16-mixed|16-true|16)$", re.IGNORECASE)
_OFF = ("false", "none", "0", "no", "off")


def audit_logs(
    baseline: Sequence[LogRecord], candidate: Sequence[LogRecord], *, same_data: bool, attest: Mapping[EvidenceName, str]
) -> tuple[AuditRow, ...]:
    """Rows of the evidence that logs cannot prove, then every setting of the configurations.

    same_data: the noise of the losses shows one data order in both arms. What is attested carries who says so.
    """
    settings = _settings_rows(baseline, candidate)
    whole = all(any(not name.startswith(LOGGED) for name in record.settings) for record in (*baseline, *candidate))
    rows = [_row(name, attest, same_data=same_data, settings=settings, whole=whole) for name in _UNPROVEN]
    return (*rows, *settings)


# What the lines of a log say by the way is compared, and is no configuration.
LOGGED = "logged."

_UNPROVEN: tuple[EvidenceName, ...] = ("data", "configuration", "fp8")


def _row(
    name: EvidenceName, attest: Mapping[EvidenceName, str], *, same_data: bool, settings: Sequence[AuditRow], whole: bool
) -> AuditRow:
    """whole: every run has a configuration."""
    title = EVIDENCE_ROWS[name]
    if name == "data" and same_data:
        shown = "the same batches: the noise of the losses is shared"
        return AuditRow(title, "same", shown, shown)
    if name == "configuration" and whole and settings and not any(row.status == "unknown" for row in settings):
        shown = f"{len(settings)} settings compared"
        return AuditRow(title, "same", shown, shown)
    if name in attest:
        return AuditRow(title, "attested", attest[name], attest[name])
    requested = [row for row in settings if _FP8.search(row.setting) and row.candidate not in (*_OFF, "—")]
    if name == "fp8" and requested:
        return AuditRow(title, "unknown", "—", f"asked for ({requested[0].setting}: {requested[0].candidate})")
    return AuditRow(title, "unknown", "—", "—")


def schedule_row(attested: str | None, *, decayed: bool, required: bool) -> tuple[AuditRow, ...]:
    """Whether the learning rate came to the end of its schedule. decayed: every log shows that it did. Unknown, it has a row
    only where a policy requires it; rates that have not come down are an obstacle of their own.
    """
    title = EVIDENCE_ROWS["schedule"]
    if attested is not None:
        return (AuditRow(title, "attested", attested, attested),)
    if decayed:
        return (AuditRow(title, "same", "by the logs", "by the logs"),)
    return (AuditRow(title, "unknown", "—", "—"),) if required else ()


def _settings_rows(baseline: Sequence[LogRecord], candidate: Sequence[LogRecord]) -> list[AuditRow]:
    """Every setting of both arms. Without a configuration on either side there is none to compare."""
    left, right = _merged(baseline), _merged(candidate)
    if not left or not right:
        return []
    own = _goes_on(left) and _goes_on(right)
    names = sorted(name for name in left.keys() | right.keys() if not (_without_effect(name) or (own and _LOAD.search(name))))
    return [_setting(name, left.get(name), right.get(name)) for name in names]


def _without_effect(name: str) -> bool:
    return bool(_IDENTITY.search(name) or _LOGGING.search(name))


def _goes_on(settings: Mapping[str, str]) -> bool:
    """Whether a run loads from where it saves: a resume of its own, not another start."""
    loads = [value for name, value in settings.items() if _LOAD.search(name)]
    saves = [value for name, value in settings.items() if re.search(r"(^|[._])save(_dir|_path)?$", name, re.IGNORECASE)]
    return bool(loads) and all(value in saves for value in loads)


def _merged(records: Sequence[LogRecord]) -> dict[str, str]:
    """Settings of one arm: where its runs differ, all their values, so that they equal no single one."""
    records = [record for record in records if record.settings]
    found: dict[str, dict[str, None]] = {}
    for name in {name for record in records for name in record.settings}:
        values = [normal(record.settings[name]) if name in record.settings else "—" for record in records]
        found[name] = dict.fromkeys(sorted(values))
    return {name: " | ".join(values) for name, values in found.items()}


def _setting(name: str, left: str | None, right: str | None) -> AuditRow:
    """A switch that is off on one side and absent on the other is the same; any other absence is a difference: both sides
    have a configuration, and it says what was set.
    """
    shown = ("—" if left is None else left, "—" if right is None else right)
    if left == right or {left or "none", right or "none"} <= set(_OFF):
        return AuditRow(name, "same", *shown)
    return AuditRow(name, "different", *shown, expected=_is_precision(name, left, right))


def _is_precision(name: str, left: str | None, right: str | None) -> bool:
    """Whether a difference is the precision under test: FP8's own settings, or a precision that is BF16 in the baseline."""
    if _FP8.search(name):
        return left is None or left in _OFF
    if _PRECISION.search(name):
        return left is None or bool(_BF16_VALUES.match(left))
    return False


def precision_obstacles(baseline: Sequence[LogRecord], names: Sequence[str]) -> list[Obstacle]:
    """A baseline whose configuration says that it is not BF16. names: of its runs."""
    for record, run in zip(baseline, names, strict=False):
        for name, value in record.settings.items():
            switched_on = _FP16.search(name) and normal(value) not in _OFF
            if switched_on or (_PRECISION.search(name) and _FP16.search(normal(value))):
                what = f"the baseline {run} is FP16, not BF16, by its configuration ({name}: {value})"
                return [Obstacle("INVALID_PAIR", what)]
            if _FP8.search(name) and normal(value) not in _OFF and _asks_for_fp8(name, value):
                what = f"the baseline {run} asks for FP8 itself ({name}: {value})"
                return [Obstacle("INVALID_PAIR", what)]
    return []


def _asks_for_fp8(name: str, value: str) -> bool:
    """Settings that only tune FP8 (margins, histories) stand in many configurations with FP8 off."""
    last = name.rpartition(".")[2].lower()
    return (
        last in ("fp8", "fp8_format", "enable_fp8", "use_fp8", "fp8_enabled", "float8", "enable_float8")
        or "fp8" in value.lower()
    )


def says_no_fp8(candidate: Sequence[LogRecord]) -> str:
    """Words on a candidate whose configuration says that FP8 is off; empty where none does. Silence proves nothing."""
    for record in candidate:
        settings = {name: normal(value) for name, value in record.settings.items()}
        asked = [name for name, value in settings.items() if (_FP8.search(name) or _FP8.search(value)) and value not in _OFF]
        off = [name for name, value in settings.items() if name.rpartition(".")[2].lower() in _SWITCHES and value in _OFF]
        plain = [name for name, value in settings.items() if _PRECISION.search(name) and _BF16_VALUES.match(value)]
        if off and not asked:
            return f"{record.name} has FP8 switched off by its configuration ({off[0]}: {settings[off[0]]})"
        if plain and not asked and "mixed_precision" in plain[0]:
            return f"{record.name} is {settings[plain[0]]} by its configuration ({plain[0]}), with no setting of FP8"
    return ""


_SWITCHES = ("fp8", "enable_fp8", "use_fp8", "fp8_enabled", "float8", "enable_float8", "enable_fp8_training")
