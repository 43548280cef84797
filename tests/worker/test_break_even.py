"""Times of single layers, on a CPU: what is timed, what is said of what fails, and the worker's verb."""

import json
from collections.abc import Iterator

import pytest
import torch

from fp8migrate.facts.recipes import (
    CurrentRecipe,
    DelayedRecipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
    TensorwiseRecipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.sizing.break_even import BreakEven, BreakEvenRequest, LinearShape
from fp8migrate.sizing.units import Layout
from fp8migrate.worker import __main__ as program
from fp8migrate.worker import break_even
from fp8migrate.worker.break_even import measure_break_even, shapes_of
from fp8migrate.worker.burst import Bursts, nothing_around

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
TRAINING = Training(
    num_steps=10, sequence_length=16, micro_batch_size=2, global_batch_size=4, learning_rate=1e-3, warmup_steps=1
)
CPU = torch.device("cpu")


def asked(*recipes: Recipe, backend: str = "emulated", layout: Layout = "linear", **more: object) -> BreakEvenRequest:
    precisions = tuple(Precision(backend=backend, recipe=recipe) for recipe in recipes)  # type: ignore[arg-type]
    return BreakEvenRequest(model=MODEL, training=TRAINING, precisions=precisions, layout=layout, device="cpu", **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure here is looked at for its value."""
    monkeypatch.setattr("fp8migrate.worker.burst._SECONDS", 1e-6)
    monkeypatch.setattr("fp8migrate.worker.burst._LEAST_REPEATS", 1)


def test_shapes_are_distinct_and_know_their_layers() -> None:
    square, narrow, wide, down, head = shapes_of(asked(CurrentRecipe()))
    assert (square.shape.tokens, square.shape.out_features, square.shape.in_features) == (32, 64, 64)
    assert square.matrices == ("layers.*.attention.query", "layers.*.attention.output")
    assert [use.count for use in (square, narrow, wide, down, head)] == [4, 4, 4, 2, 1]
    assert len(shapes_of(asked(CurrentRecipe(), layout="packed"))) == 4  # gate and up as one are as large as lm_head
    extra = shapes_of(
        asked(CurrentRecipe(), extra_shapes=(square.shape, LinearShape(tokens=8, out_features=16, in_features=16)))
    )
    assert [use.count for use in extra] == [4, 4, 4, 2, 1, 0]


@pytest.mark.parametrize(
    ("backend", "recipe"),
    [
        ("emulated", CurrentRecipe()),
        ("emulated", DelayedRecipe(amax_history_len=4)),
        ("emulated", RowwiseHighPrecisionRecipe()),
        ("torchao", TensorwiseRecipe()),
        ("torchao", RowwiseHighPrecisionRecipe()),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_every_part_of_every_shape_is_timed(backend: str, recipe: Recipe) -> None:
    if backend == "torchao":
        pytest.importorskip("torchao", reason="torchao is not installed")
    found = measure_break_even(asked(recipe, backend=backend), CPU)
    assert found.failed == ()
    assert {(time.shape, time.part) for time in found.times} == {
        (use.shape, part)
        for use in shapes_of(asked(recipe))
        for part in ("forward", "backward", "data_gradient", "weight_gradient")
    }
    assert {(time.backend, time.recipe) for time in found.times} == {(backend, recipe.in_words)}
    assert found.raw == ()  # of a GPU alone
    assert BreakEven.model_validate_json(found.model_dump_json()) == found


def test_what_fails_is_told_and_costs_no_other_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, recipes: object, name: str, *, emulate: bool = False) -> object:
        raise RuntimeError("no such kernel\nand a long trace")

    pytest.importorskip("torchao", reason="torchao is not installed")
    monkeypatch.setattr("fp8migrate.worker.backends.torchao.Torchao.config", broken)
    precisions = (
        Precision(backend="torchao", recipe=TensorwiseRecipe()),
        Precision(backend="transformer_engine", recipe=CurrentRecipe()),
        Precision(backend="emulated", recipe=CurrentRecipe()),
    )
    found = measure_break_even(asked(CurrentRecipe()).model_copy(update={"precisions": precisions}), CPU)
    assert found.recipes() == (("emulated", CurrentRecipe().in_words),)
    assert sum("RuntimeError: no such kernel" in why for why in found.failed) == 15
    assert sum("transformer_engine" in why for why in found.failed) == 1
    assert len(found.times) == 20


def test_a_shape_that_a_recipe_does_not_take_is_told() -> None:
    odd = LinearShape(tokens=8, out_features=32, in_features=32)
    found = measure_break_even(asked(RowwiseRecipe(), extra_shapes=(odd,)), CPU)
    (why,) = found.failed
    assert why.startswith("8 × 32 → 32, rowwise(")
    assert why.endswith("micro_batch_size × sequence_length = 8 is not a multiple of 16: change either")
    assert len(found.times) == 20


def test_where_the_plan_pads_the_padded_layer_is_timed() -> None:
    odd = LinearShape(tokens=8, out_features=32, in_features=32)
    precision = Precision(backend="emulated", recipe=RowwiseRecipe(), odd_shapes="pad")
    request = asked(RowwiseRecipe(), extra_shapes=(odd,)).model_copy(update={"precisions": (precision,)})
    found = measure_break_even(request, CPU)
    assert found.failed == ()
    assert sum(time.shape == odd for time in found.times) == 4


def test_no_shape_is_begun_after_the_time_is_over() -> None:
    found = measure_break_even(asked(CurrentRecipe(), seconds=1e-9), CPU)
    assert found.times == ()
    assert all("the time given was over" in why for why in found.failed)


def test_the_parts_are_those_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves on by what each part says it takes."""
    now = [0.0]
    monkeypatch.setattr("fp8migrate.worker.burst.time.perf_counter", lambda: now[0])

    def work(*seconds: float) -> Iterator[None]:
        for each in seconds:
            now[0] += each
            yield

    found = Bursts(CPU).compare([(lambda: work(3.0, 5.0), nothing_around), (lambda: work(2.0), nothing_around)])
    assert found == [[(3.0, 3.0), (5.0, 5.0)], [(2.0, 2.0)]]


def test_the_verb_prints_one_line_of_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "exit_with_parent", lambda: None)
    request = asked(CurrentRecipe())
    assert program.main(["break-even", "--request", request.model_dump_json()]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert BreakEven.model_validate_json(line).times
    assert json.loads(line)["layout"] == "linear"


def test_both_kinds_of_work_have_the_same_tensors() -> None:
    shape = LinearShape(tokens=16, out_features=32, in_features=16)
    tensors = break_even._Tensors.make(shape, CPU, (True, False))
    assert (tensors.x.requires_grad, tensors.source.weight.requires_grad) == (True, False)
    assert (tensors.x.dtype, tensors.source.weight.dtype, tensors.dy.shape) == (torch.bfloat16, torch.bfloat16, (16, 32))
