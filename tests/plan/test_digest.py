"""The digest follows the meaning: neither the look of the file, nor what has no effect on a result."""

from pathlib import Path

import pytest

from fp8migrate.plan.digest import meaning, plan_digest
from fp8migrate.plan.load import load_plan
from tests.plan.conftest import GOOD


def digest(tmp_path: Path, text: str) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    loaded = load_plan(path)
    assert loaded.sha256 == plan_digest(loaded.plan)
    return loaded.sha256


@pytest.mark.parametrize(
    "text",
    [
        "# comment\n" + GOOD,
        GOOD.replace("1e-3", "0.001"),
        GOOD.replace("  num_steps: 600\n  sequence_length: 128\n", "  sequence_length: 128\n  num_steps: 600\n"),
        GOOD + "  floor_pairs: 4\n",
        GOOD + "parity: {margin: standard, serve: bf16}\n",
        GOOD + "parity: {margin: 0.0025}\n",
        GOOD + "parity: {serve_margin: 0.01}\n",  # without serve: fp8
        GOOD.replace("name: llama-small", "name: other"),
        GOOD + "budget: {gpu_hours: 3}\n",
        GOOD + "launch: {max_parallel: 2, stall_timeout_seconds: 30}\n",
    ],
)
def test_what_changes_no_result_changes_no_digest(tmp_path: Path, text: str) -> None:
    assert digest(tmp_path, text) == digest(tmp_path, GOOD)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("1e-3", "1.1e-3"),
        GOOD.replace("amax_history_len: 16", "amax_history_len: 17"),
        GOOD + "  floor_pairs: 5\n",
        GOOD + "parity: {margin: strict}\n",
        GOOD + "parity: {serve: fp8}\n",
        GOOD + "parity: {require_fp8: false}\n",
        GOOD.replace("  recipe", "  keep_smaller_than: 5000\n  recipe"),
        GOOD.replace("  recipe", "  keep_advised: true\n  recipe"),
        GOOD.replace("  recipe", "  odd_shapes: pad\n  recipe"),
        GOOD + "launch: {threads_per_job: 2}\n",
        GOOD + "launch: {device: cpu}\n",
        GOOD + "phases: {small_scale: {shrink: 1}}\n",
        GOOD + "phases: {small_scale: {learning_rate_rule: keep}}\n",
        GOOD + "data: {validation_tokens: 4096}\n",
    ],
)
def test_every_effective_setting_changes_the_digest(tmp_path: Path, text: str) -> None:
    assert digest(tmp_path, text) != digest(tmp_path, GOOD)


def test_the_margin_of_an_fp8_forward_counts_where_it_is_judged(tmp_path: Path) -> None:
    served = digest(tmp_path, GOOD + "parity: {serve: fp8}\n")
    assert digest(tmp_path, GOOD + "parity: {serve: fp8, serve_margin: 0.0025}\n") == served
    assert digest(tmp_path, GOOD + "parity: {serve: fp8, serve_margin: 0.01}\n") != served


def test_meaning_has_every_default_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(GOOD, encoding="utf-8")
    settings = meaning(load_plan(path).plan)
    assert "name" not in settings
    assert "budget" not in settings
    assert settings["launch"] == {"device": "auto", "threads_per_job": 1}
    assert settings["parity"] == {"margin": 0.0025, "serve": "bf16", "serve_margin": None, "require_fp8": True}
    assert settings["training"]["beta2"] == 0.95
