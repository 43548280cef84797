"""The advisor's eyes: hooks on every linear layer during a few updates of a BF16 run. No bit of the training changes.

Tables, one file a step, so that a killed and resumed run neither loses nor doubles a row:
`tensor_stats-<step>`   one row per recipe, GEMM and operand, with lists over layers
`tensor_amaxes-<step>`  largest magnitudes by pass, of the steps before: what delayed scaling takes its scales from
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS, Gemm, Operand, TensorName
from fp8migrate.facts.recipes import Recipe
from fp8migrate.jobs import Train
from fp8migrate.worker.linear import CONTRACTION, Linear
from fp8migrate.worker.quantize import largest
from fp8migrate.worker.recompute import recomputing
from fp8migrate.worker.tensor_stats import STATISTICS, Rows, delayed_scales, losses, stacked, take

# Passes before a sample whose maxima delayed scaling looks back on. Over 4 passes an outlier token was clipped that 16 kept.
HISTORY_PASSES = 16
# Rows wait for those of other layers until they hold this many values: a few tens of MB at work.
_MOST_VALUES_WAITING = 1 << 21

Use = tuple[Recipe, Gemm]
See = Callable[[str, TensorName, Tensor], None]
Maxima = dict[tuple[str, TensorName], list[float]]
# By layer and tensor: (passes ago, largest magnitude), the newest first.
Histories = dict[tuple[str, TensorName], list[tuple[int, float]]]


class Tables(Protocol):
    """What a watch writes to: a run's RunWriter."""

    def table(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None: ...

    def read_table(self, name: str) -> list[dict[str, Any]]: ...

    def update(self, *, facts: Mapping[str, Any]) -> None: ...

    def fact(self, name: str, default: float) -> float: ...


class TensorWatch:
    """Watches the updates that a task's `tensor_stats` names, and the passes before them."""

    def __init__(self, model: nn.Module, task: Train, writer: Tables) -> None:
        self.seconds = 0.0
        self._seconds_before = writer.fact("advisor_seconds", 0.0)
        self._settings, self._writer = task.tensor_stats, writer
        self._layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
        self._passes = task.training.global_batch_size // task.training.micro_batch_size
        self._maxima: dict[int, Maxima] = {}
        if self._settings is not None:
            before = -(-HISTORY_PASSES // self._passes)
            first = task.first_step + 1
            self._sampled = set(self._settings.steps)
            self._watched = {n for s in self._sampled for n in range(max(first, s - before), s + 1)}
            self._uses = uses(self._settings.recipes)

    @contextmanager
    def update_to(self, step: int) -> Iterator[None]:
        """Around the update after which `step` are done."""
        if self._settings is None or step not in self._watched:
            yield
            return
        maxima: dict[tuple[str, TensorName], list[Tensor]] = {}
        samples = _Samples(self._uses, self._settings.max_tokens, self._histories(step)) if step in self._sampled else None

        def see(layer: str, tensor: TensorName, values: Tensor) -> None:
            started = time.perf_counter()
            with torch.no_grad():
                maxima.setdefault((layer, tensor), []).append(largest(values))
                if samples is not None:
                    samples.add(layer, tensor, values)
            self.seconds += time.perf_counter() - started

        with watching(self._layers, see):
            yield
        started = time.perf_counter()
        self._record(step, maxima, samples)
        self.seconds += time.perf_counter() - started
        if samples is not None:
            self._writer.update(facts={"advisor_seconds": self._seconds_before + self.seconds})

    def _record(self, step: int, maxima: dict[tuple[str, TensorName], list[Tensor]], samples: "_Samples | None") -> None:
        keys = list(maxima)
        flat = iter(torch.stack([one for key in keys for one in maxima[key]]).tolist() if keys else [])
        self._maxima[step] = {key: [next(flat) for _ in maxima[key]] for key in keys}
        rows = [
            {"step": step, "layer": layer, "tensor": tensor, "amaxes": found}
            for (layer, tensor), found in self._maxima[step].items()
        ]
        self._writer.table(_amaxes(step), rows)
        if samples is not None:
            self._writer.table(f"tensor_stats-{step:08d}", samples.table(step, list(self._layers)))

    def _histories(self, step: int) -> Histories:
        """By layer and tensor the maxima of the passes watched before `step`, newest first, and how many passes ago each."""
        found: Histories = {}
        for earlier in sorted((n for n in self._watched if n < step), reverse=True):
            if earlier not in self._maxima:
                table = self._writer.read_table(_amaxes(earlier))
                self._maxima[earlier] = {(row["layer"], row["tensor"]): row["amaxes"] for row in table}
            newest = (step - earlier - 1) * self._passes + 1
            for key, amaxes in self._maxima[earlier].items():
                found.setdefault(key, []).extend(enumerate(reversed(amaxes), newest))
        return found


def _amaxes(step: int) -> str:
    return f"tensor_amaxes-{step:08d}"


def uses(recipes: Iterable[Recipe]) -> dict[TensorName, dict[tuple[Operand, int], list[Use]]]:
    """By tensor: each different operand with the dimension it lies along, and the recipes and GEMMs that take it so."""
    found: dict[TensorName, dict[tuple[Operand, int], list[Use]]] = {"input": {}, "weight": {}, "gradient": {}}
    for recipe in recipes:
        for gemm in GEMMS:
            for tensor, operand in zip(GEMM_OPERANDS[gemm], recipe.operands(gemm) or (), strict=False):
                along = CONTRACTION[gemm, tensor] if operand.directional else 1
                found[tensor].setdefault((operand, along), []).append((recipe, gemm))
    return found


@contextmanager
def watching(layers: Mapping[str, nn.Module], see: See) -> Iterator[None]:
    """Call `see` with the input, weight and output gradient [rows, features] of each layer, as its GEMMs take them.

    Once a pass: a recomputed one brings nothing new, and histories count passes.
    """
    eyes = _Eyes(see)
    handles: list[Any] = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(_before(name, eyes)))
        handles.append(layer.register_forward_hook(_after(name, eyes)))
    try:
        yield
    finally:
        eyes.see = _nothing
        for handle in handles:
            handle.remove()


@dataclass
class _Eyes:
    """What hooks see through, closed when the watch ends. A gradient's hook lies in the graph, which the values seen hold in
    turn: a cycle that Python cannot collect, so that a pass which fails would keep its memory.
    """

    see: See


def _nothing(layer: str, tensor: TensorName, values: Tensor) -> None:
    """The watch is over."""


def _before(name: str, eyes: _Eyes) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if recomputing():
            return
        weight = layer.weight
        assert isinstance(weight, Tensor)
        eyes.see(name, "input", inputs[0])
        eyes.see(name, "weight", weight)

    return hook


def _after(name: str, eyes: _Eyes) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: eyes.see(name, "gradient", gradient))  # type: ignore[no-untyped-call]

    return hook


class _Samples:
    """The rows taken during one update, quantised in groups of equal shape."""

    def __init__(
        self, uses: dict[TensorName, dict[tuple[Operand, int], list[Use]]], max_tokens: int, histories: Histories
    ) -> None:
        self._uses, self._max_tokens, self._histories = uses, max_tokens, histories
        self._seen: set[tuple[str, TensorName]] = set()
        self._input: tuple[Tensor, str] | None = None
        self._same_input: dict[str, str] = {}
        self._waiting: dict[tuple[TensorName, torch.Size, bool], list[tuple[str, Rows]]] = {}
        self._values_waiting = 0
        self._tokens = 0
        self._found: dict[tuple[Recipe, Gemm, TensorName], dict[str, list[float]]] = {}
        self._operands: dict[tuple[Recipe, Gemm, TensorName], Operand] = {}

    def add(self, layer: str, tensor: TensorName, values: Tensor) -> None:
        """Take rows in the layer's first pass; a tensor that several layers are given counts once."""
        if (layer, tensor) in self._seen:
            return
        self._seen.add((layer, tensor))
        if tensor == "input":
            if self._input is not None and self._input[0] is values:
                self._same_input[layer] = self._input[1]
                return
            self._input = (values, layer)
        rows = take(values.reshape(-1, values.shape[-1]), self._max_tokens)
        if tensor == "input":
            self._tokens = rows.values.shape[1]
        self._waiting.setdefault((tensor, rows.values.shape, rows.column_amax is None), []).append((layer, rows))
        self._values_waiting += rows.values.numel()
        if self._values_waiting > _MOST_VALUES_WAITING:
            self._measure()

    def _measure(self) -> None:
        for (tensor, _, _), waiting in self._waiting.items():
            layers, rows = [layer for layer, _ in waiting], stacked([rows for _, rows in waiting])
            for (operand, along), taking in self._uses[tensor].items():
                scale = self._delayed_scales(operand, layers, tensor, rows.values.device)
                if operand.history is not None and scale is None:
                    continue
                measured = losses(rows, operand, along, scale).t().tolist()
                for recipe, gemm in taking:
                    self._operands[recipe, gemm, tensor] = operand
                    self._found.setdefault((recipe, gemm, tensor), {}).update(zip(layers, measured, strict=True))
        self._waiting.clear()
        self._values_waiting = 0

    def _delayed_scales(self, operand: Operand, layers: list[str], tensor: TensorName, device: torch.device) -> Tensor | None:
        """None where nothing came before: a cold scale says nothing about the recipe."""
        if operand.history is None:
            return None
        reach = operand.history.length
        histories = [[amax for ago, amax in self._histories.get((layer, tensor), []) if ago <= reach] for layer in layers]
        return delayed_scales(histories, operand, device) if all(histories) else None

    def table(self, step: int, layers: list[str]) -> list[dict[str, object]]:
        """One row per recipe, GEMM and operand. layers: in the order of depth."""
        self._measure()
        rows: list[dict[str, object]] = []
        for (recipe, gemm, tensor), by_layer in self._found.items():
            if tensor == "input":
                by_layer = by_layer | {layer: by_layer[same] for layer, same in self._same_input.items()}
            known = [layer for layer in layers if layer in by_layer]
            row: dict[str, object] = {
                "step": step,
                "recipe": recipe.in_words,
                "gemm": gemm,
                "tensor": tensor,
                "operand": self._operands[recipe, gemm, tensor].in_words,
                "tokens": self._tokens,
                "layers": known,
            }
            columns = zip(*(by_layer[layer] for layer in known), strict=True)
            rows.append(row | dict(zip(STATISTICS, map(list, columns), strict=True)))
        return rows
