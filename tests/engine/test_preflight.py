"""Plans that could end in a PASS which says nothing are refused before anything runs, with the place and what to do."""

from pathlib import Path

import pytest

from fp8migrate.engine.odd_shapes import odd_shape_lines
from fp8migrate.engine.preflight import preflight
from fp8migrate.errors import PlanError
from fp8migrate.facts.recipes import Mxfp8Recipe
from fp8migrate.plan.load import load_plan
from fp8migrate.plan.schema import Candidate
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


def odd_plan(tmp_path: Path, candidate: str) -> Path:
    path = tmp_path / "plan.yaml"
    text = TINY_PLAN.replace(CANDIDATE, f"candidate: {candidate}\n").replace("ffn_hidden_size: 64", "ffn_hidden_size: 62")
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("candidate", "way_out"),
    [
        ("{recipe: {kind: current}, keep_bf16: [lm_head, attention]}", "Say candidate.odd_shapes: pad, or change the shapes"),
        ("{recipe: {kind: current}, keep_bf16: ['*']}", "Keep fewer layers"),
        ("{recipe: {kind: current}, keep_bf16: ['*'], odd_shapes: pad}", "Keep fewer layers"),
    ],
)
def test_padding_is_a_way_out_where_shapes_keep_layers_out(tmp_path: Path, candidate: str, way_out: str) -> None:
    with pytest.raises(PlanError) as refused:
        preflight(load_plan(odd_plan(tmp_path, candidate)))
    assert str(refused.value.next_step).startswith(way_out)


@pytest.mark.parametrize(
    ("candidate", "line"),
    [
        (
            "{recipe: {kind: current}}",
            "3 of 8 linear layers of the model stay in BF16 for their shape: layers.*.mlp.gate, layers.*.mlp.up "
            "(out_features 62 is not a multiple of 16); layers.*.mlp.down (in_features 62 is not a multiple of 16). "
            "candidate.odd_shapes: pad runs them in FP8, padded with zeros.",
        ),
        (
            "{recipe: {kind: current}, odd_shapes: pad}",
            "3 of 8 linear layers of the model run in FP8 padded with zeros: layers.*.mlp.gate, layers.*.mlp.up "
            "(out_features 62 → 64); layers.*.mlp.down (in_features 62 → 64).",
        ),
        ("{recipe: {kind: current}, keep_bf16: [mlp]}", None),
        ("{recipe: {kind: bf16}}", None),
    ],
)
def test_layers_of_odd_shape_are_told(tmp_path: Path, candidate: str, line: str | None) -> None:
    path = odd_plan(tmp_path, candidate)
    if "bf16}" in candidate:
        path.write_text(path.read_text() + "parity: {require_fp8: false}\n")
    assert odd_shape_lines(load_plan(path).plan) == ([] if line is None else [line])


def test_a_shrunk_model_has_a_line_of_its_own() -> None:
    """Hidden size 112 and what it shrinks to are multiples of 16, and mxfp8 wants 32."""
    quickstart = load_plan(Path(__file__).parents[2] / "configs" / "quickstart.yaml").plan
    plan = quickstart.model_copy(update={"candidate": Candidate(recipe=Mxfp8Recipe())})
    found = [line.partition(" stay in BF16")[0].partition("layers of ")[2] for line in odd_shape_lines(plan)]
    assert found == ["the model", "the shrunk model"]
