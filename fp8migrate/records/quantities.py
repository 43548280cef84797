"""What the names that logs give their columns mean, and in which unit."""

import re
from dataclasses import dataclass
from functools import lru_cache

from fp8migrate.records.logs import Axis, Quantity


@dataclass(frozen=True)
class Meaning:
    """A column's quantity. factor: from the log's unit to ours. rank: of several columns of one quantity the lowest counts."""

    quantity: Quantity
    unit: str
    factor: float = 1.0
    rank: int = 0


# Names are compared in lower case, with everything that is neither letter nor digit as one underscore. First match wins.
_TRAIN = r"(?:train(?:ing)?_)?(?:lm_|ce_|cross_?entropy_|nll_)?loss"
_EVAL = r"(?:val|valid|validation|eval|evaluation|dev|heldout|held_out)"
_NAMES: tuple[tuple[str, Meaning], ...] = (
    (rf"{_EVAL}_(?:lm_|ce_|cross_?entropy_)?loss", Meaning("validation_loss", "nats")),
    (rf"(?:lm_)?loss_{_EVAL}|{_EVAL}_(?:crossentropy|cross_entropy)loss", Meaning("validation_loss", "nats")),
    (rf"validation_metrics_loss|{_EVAL}_\w+_crossentropyloss", Meaning("validation_loss", "nats", rank=1)),
    (rf"{_EVAL}_loss_epoch", Meaning("validation_loss", "nats")),
    (rf"{_EVAL}_(?:bpb|bits_per_byte|bits_per_token)", Meaning("validation_loss", "bits", rank=2)),
    (rf"{_EVAL}_(?:ppl|perplexity)|(?:lm_)?loss_{_EVAL}_ppl", Meaning("validation_loss", "perplexity", rank=3)),
    (_TRAIN, Meaning("training_loss", "nats")),
    (rf"{_TRAIN}_step|reduced_{_TRAIN}|train_crossentropyloss|loss_metrics_global_avg_loss", Meaning("training_loss", "nats")),
    (r"(?:global_)?avg_loss|mean_loss|train_split_loss", Meaning("training_loss", "nats", rank=1)),
    (rf"{_TRAIN}_epoch", Meaning("training_loss", "nats", rank=4)),
    (r"(?:train_)?(?:bpb|bits_per_byte|bits_per_token)", Meaning("training_loss", "bits", rank=2)),
    (r"(?:train_)?(?:ppl|perplexity)", Meaning("training_loss", "perplexity", rank=3)),
    (r"(?:train_|optim_|total_)?(?:global_)?grad(?:ient)?_?norm", Meaning("grad_norm", "")),
    (r"(?:train_|optim_)?(?:lr|learning_?rate)(?:_.*group_?0)?|lr_\w*adam\w*", Meaning("learning_rate", "")),
    (r"loss_scale", Meaning("loss_scale", "")),
    (r"(?:train_)?(?:dt|step_time|iteration_time|iter_time|time_per_step)_ms", Meaning("step_seconds", "s", 1e-3)),
    (r"elapsed_time_per_iteration_ms|step_ms", Meaning("step_seconds", "s", 1e-3)),
    (
        r"(?:train_)?(?:step_time|iteration_time|iter_time|step_seconds|time_per_step|seconds_per_step|dt)(?:_s|_in_s)?",
        Meaning("step_seconds", "s"),
    ),
    (r"train_step_timing(?:_in_s)?|time_metrics_end_to_end_s", Meaning("step_seconds", "s")),
    (
        r"(?:\w*_)?(?:tok(?:en)?s?_?(?:per|/)_?sec(?:ond)?|tps|tok_sec|tokens_per_s|throughput_tps\w*)",
        Meaning("tokens_per_second", "tokens/s"),
    ),
    (r"(?:train_)?samples_per_sec(?:ond)?", Meaning("samples_per_second", "samples/s")),
    (r"(?:\w*_)?(?:max_)?mem(?:ory)?(?:_\w+)?_?gib", Meaning("memory_bytes", "bytes", 2.0**30)),
    (r"(?:\w*_)?(?:peak_|max_)?mem(?:ory)?(?:_\w+)?_?gb", Meaning("memory_bytes", "bytes", 1e9)),
    (r"(?:\w*_)?(?:peak_|max_)?mem(?:ory)?(?:_\w+)?_?mib", Meaning("memory_bytes", "bytes", 2.0**20)),
    (r"(?:\w*_)?(?:peak_|max_)?mem(?:ory)?(?:_\w+)?_?mb", Meaning("memory_bytes", "bytes", 1e6)),
    (r"(?:peak_)?mem(?:ory)?_bytes|(?:\w*_)?mem_max_allocated_bytes", Meaning("memory_bytes", "bytes")),
)
_COMPILED = tuple((re.compile(pattern), meaning) for pattern, meaning in _NAMES)

# Exact names of x columns, best first.
_AXES: tuple[tuple[str, Axis], ...] = (
    ("step", "steps"),
    ("global_step", "steps"),
    ("trainer_global_step", "steps"),
    ("train_step", "steps"),
    ("iteration", "steps"),
    ("iter", "steps"),
    ("update", "steps"),
    ("num_updates", "steps"),
    ("_step", "steps"),
    ("samples", "samples"),
    ("consumed_samples", "samples"),
    ("samples_seen", "samples"),
    ("tokens", "tokens"),
    ("consumed_tokens", "tokens"),
    ("tokens_seen", "tokens"),
    ("num_tokens", "tokens"),
    ("train_tokens", "tokens"),
    ("epoch", "epochs"),
)
_MAX_LABEL = 200


def plain(label: str) -> str:
    """`lm loss`, `train/Lm-Loss` → `lm_loss`, `train_lm_loss`."""
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


@lru_cache(maxsize=4096)
def meaning(label: str) -> Meaning | None:
    """What a column holds, by its name; None for what we do not compare."""
    if len(label) > _MAX_LABEL:
        return None
    name = plain(label)
    if "vs_samples" in name:
        return None
    return next((found for pattern, found in _COMPILED if pattern.fullmatch(name)), None)


def axis_of(labels: list[str]) -> tuple[str, Axis] | None:
    """The column that counts, with what it counts; None where no column does."""
    lowered = {label.lower().strip().replace(" ", "_").replace("/", "_"): label for label in reversed(labels)}
    return next(((lowered[name], axis) for name, axis in _AXES if name in lowered), None)
