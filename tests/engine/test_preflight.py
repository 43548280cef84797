"""Plans that could end in a PASS which says nothing are refused before anything runs, with the place and what to do."""

from pathlib import Path

import pytest

from fp8migrate.engine.preflight import preflight
from fp8migrate.errors import PlanError
from fp8migrate.plan.load import load_plan
from tests.cli.conftest import TINY_PLAN

CANDIDATE = "candidate: {backend: emulated, recipe: {kind: current}, keep_bf16: [lm_head]}\n"


def refusal(tmp_path: Path, candidate: str, parity: str = "") -> PlanError | None:
    path = tmp_path / "plan.yaml"
    path.write_text(TINY_PLAN.replace(CANDIDATE, f"candidate: {candidate}\n") + (f"parity: {parity}\n" if parity else ""))
    try:
        preflight(load_plan(path))
    except PlanError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("candidate", "parity", "says"),
    [
        ("{recipe: {kind: current}, keep_bf16: ['*']}", "", "every layer of"),
        ("{recipe: {kind: current}, policy: [{layers: '*', recipe: {kind: bf16}}]}", "", "every layer of"),
        ("{recipe: {kind: mxfp8}, policy: [{layers: '*', recipe: {kind: bf16}}]}", "{require_fp8: false}", "every layer of"),
        (
            "{recipe: {kind: current}, policy: [{layers: '*', gemms: [forward], recipe: {kind: bf16}}]}",
            "{serve: fp8}",
            "no forward GEMM",
        ),
        ("{recipe: {kind: current}, policy: [{layers: layers.*.mlp.dwon, recipe: {kind: bf16}}]}", "", "matches no layer"),
        ("{recipe: {kind: current}, keep_bf16: [norms, embedings]}", "", "embedings matches no layer"),
        ("{recipe: {kind: current}, policy: [{layers: norms, recipe: {kind: bf16}}]}", "", "norms matches no layer"),
        ("{recipe: {kind: current}, keep_bf16: [attention, mlp, head]}", "", "every layer of"),
        ("{recipe: {kind: current}, keep_smaller_than: 100000000}", "", "every layer of"),
    ],
)
def test_refused(tmp_path: Path, candidate: str, parity: str, says: str) -> None:
    error = refusal(tmp_path, candidate, parity)
    assert error is not None
    assert says in str(error)
    assert "plan.yaml:" in str(error.where)
    assert error.next_step


@pytest.mark.parametrize(
    ("candidate", "parity"),
    [
        ("{recipe: {kind: current}, policy: [{layers: '*', gemms: [forward], recipe: {kind: bf16}}]}", "{serve: bf16}"),
        ("{recipe: {kind: rowwise_with_gw_hp}}", "{serve: fp8}"),
        ("{recipe: {kind: current}, keep_bf16: [norms, embeddings, head]}", "{serve: bf16}"),
        ("{recipe: {kind: current}, keep_bf16: [attention]}", "{serve: bf16}"),
        ("{recipe: {kind: bf16}}", "{require_fp8: false}"),
    ],
)
def test_taken(tmp_path: Path, candidate: str, parity: str) -> None:
    assert refusal(tmp_path, candidate, parity) is None
