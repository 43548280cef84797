"""What the configurations of finished runs say of each other."""

import numpy as np
import pytest

from fp8migrate.evidence.logged_settings import audit_logs, precision_obstacles, says_no_fp8
from fp8migrate.plan.audit import AuditRow
from fp8migrate.records.logs import LogRecord, LogSeries

LOSS = LogSeries("training_loss", "loss", "nats", "steps", np.arange(3.0), np.array([3.0, 2.0, 1.0]))


def run(**settings: str) -> LogRecord:
    return LogRecord("log", "log", "jsonl", {"training_loss": LOSS}, settings=settings)


def rows(left: LogRecord, right: LogRecord) -> dict[str, AuditRow]:
    return {row.setting: row for row in audit_logs([left], [right], same_data=False, attest={})}


@pytest.mark.parametrize(
    ("setting", "left", "right"),
    [("fp8", None, "hybrid"), ("fp8_format", None, "e4m3"), ("fp8", "false", "true"),
     ("mixed_precision", "bf16", "fp8"),
     ("precision", "bf16-true", "transformer-engine"), ("float8.enable", None, "true"),
     ("model.fp8_recipe", "none", "delayed")],
)  # fmt: skip
def test_the_precision_under_test_may_differ(setting: str, left: str | None, right: str | None) -> None:
    sides = [run(lr="1", **({} if value is None else {setting: value})) for value in (left, right)]
    assert (rows(*sides)[setting].status, rows(*sides)[setting].expected) == ("different", True)


@pytest.mark.parametrize(
    ("setting", "left", "right"),
    [("lr", "0.001", "0.002"), ("bf16", None, "true"), ("fp16", "true", None),
     ("transformer_impl", "local", "transformer_engine"),
     ("data_path", "/a", "/b"), ("precision", "16-mixed", "transformer-engine"), ("fp8", "hybrid", None),
     ("weight_decay", "0.1", None), ("load", "/a", "/b"), ("pretrained_checkpoint", "/a", "/b"), ("model_name", "x", "y"),
     ("NVTE_FUSED_ATTN", "0", "1"), ("global_batch_size", "128", "256"), ("optimizer_name", "adam", "muon")],
)  # fmt: skip
def test_anything_else_may_not(setting: str, left: str | None, right: str | None) -> None:
    sides = [run(seed="1", lr_decay="x", **({} if value is None else {setting: value})) for value in (left, right)]
    assert (rows(*sides)[setting].status, rows(*sides)[setting].expected) == ("different", False)


@pytest.mark.parametrize(
    "setting",
    [
        "seed",
        "run_name",
        "output_dir",
        "tensorboard_dir",
        "wandb.project",
        "save",
        "hostname",
        "logging_dir",
        "train_log_dir",
        "trainer.output_dir",
    ],
)
def test_where_things_lie_and_what_they_are_called_does_not_count(setting: str) -> None:
    assert setting not in rows(run(lr="1", **{setting: "a"}), run(lr="1", **{setting: "b"}))


def test_each_arm_may_go_on_from_its_own_checkpoints() -> None:
    found = rows(run(lr="1", load="/a", save="/a"), run(lr="1", load="/b", save="/b"))
    assert found.keys() == {"same data", "same configuration", "FP8 ran", "lr"}


def test_a_switch_that_is_off_is_as_good_as_absent() -> None:
    assert rows(run(lr="1", compile="false"), run(lr="1"))["compile"].status == "same"


def test_runs_of_one_arm_that_differ_among_themselves_equal_no_single_setting() -> None:
    found = audit_logs([run(lr="1"), run(lr="2")], [run(lr="1")], same_data=False, attest={})
    assert [(row.status, row.baseline) for row in found if row.setting == "lr"] == [("different", "1 | 2")]


def test_without_a_configuration_on_both_sides_it_is_unknown() -> None:
    assert rows(run(lr="1"), run())["same configuration"].status == "unknown"
    assert rows(run(lr="1"), run(lr="1"))["same configuration"].status == "same"


def test_what_is_attested_says_who() -> None:
    found = audit_logs([run()], [run()], same_data=False, attest={"fp8": "J. Doe: trace"})
    assert [(row.setting, row.status) for row in found] == [
        ("same data", "unknown"), ("same configuration", "unknown"), ("FP8 ran", "attested"),
    ]  # fmt: skip


def test_a_request_for_fp8_is_no_proof_that_it_ran() -> None:
    assert rows(run(lr="1"), run(lr="1", fp8="hybrid"))["FP8 ran"].status == "unknown"


@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [({"fp16": "true"}, "FP16"), ({"precision": "16-mixed"}, "FP16"), ({"torch_dtype": "torch.float16"}, "FP16"),
     ({"fp8": "hybrid"}, "asks for FP8"), ({"fp16": "false"}, ""), ({"bf16": "true"}, ""), ({"fp8_margin": "0"}, ""),
     ({"fp8_amax_history_len": "1024", "fp8": "false"}, "")],
)  # fmt: skip
def test_a_baseline_that_is_not_bf16(settings: dict[str, str], obstacle: str) -> None:
    found = precision_obstacles([run(**settings)], ["base"])
    assert (obstacle in found[0].what) if obstacle else found == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"use_fp8": "false"}, True), ({"mixed_precision": "bf16"}, True), ({"fp8": "hybrid"}, False), ({"lr": "1"}, False),
     ({"mixed_precision": "bf16", "fp8_recipe": "delayed"}, False), ({"mixed_precision": "fp8"}, False),
     ({"bf16": "true"}, False)],
)  # fmt: skip
def test_only_positive_evidence_counts_against_fp8(settings: dict[str, str], says: bool) -> None:
    assert bool(says_no_fp8([run(**settings)])) == says
