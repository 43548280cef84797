"""`python -m fp8migrate.worker.measure REQUEST OUTPUT`: how fast whole training steps run, arm by arm, over one set of weights.

Arms take turns, so that a GPU that warms up or slows down does so for all of them. Whatever is found is written at once, one
JSON object a line: a lever that fails, or a process that dies, loses nothing that was measured before. Weights, gradients and
AdamW's states are BF16; tokens are random. Every arm's step is forward, backward, the gradients' global norm and the update.
"""

import gc
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import orjson
import torch
from torch import Tensor

from fp8migrate.errors import UserError
from fp8migrate.jobs import Measure, MeasuredArm
from fp8migrate.plan.schema import PythonSourceData
from fp8migrate.records.parent import exit_with_parent
from fp8migrate.worker.adamw import FastAdamW
from fp8migrate.worker.arms import Arm, build_arm
from fp8migrate.worker.clock import Clock, wait
from fp8migrate.worker.gemm_rates import GemmShape, step_gemms
from fp8migrate.worker.gemm_rates import measure as measure_gemm
from fp8migrate.worker.levers import Row, attention_levers, best_way, copy_bandwidth, optimizer_levers, repeating_pays
from fp8migrate.worker.models.packed import PackedLayer, PackedLlama
from fp8migrate.worker.nvml import energy_counter
from fp8migrate.worker.optimizer import learning_rate, set_learning_rate
from fp8migrate.worker.probe import probe
from fp8migrate.worker.runtime import choose_device, release_memory

_BATCHES = 4


class Recorder:
    """A file of lines, each handed to the system at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._began = time.perf_counter()

    def write(self, kind: str, **fields: object) -> None:
        self._file.write(orjson.dumps({"kind": kind, "at": round(self.seconds, 3), **fields}) + b"\n")
        self._file.flush()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._began


class Measurement:
    """One set of weights, one optimizer, several arms."""

    def __init__(self, task: Measure, device: torch.device, recorder: Recorder) -> None:
        self.task, self.device, self.recorder = task, device, recorder
        self.on_gpu = device.type == "cuda"
        self.energy = energy_counter(device)
        training = task.training
        self.packed = PackedLlama(task.model, training.sequence_length, device, torch.bfloat16)
        self.packed.fill(training.seed)
        self.optimizer = FastAdamW(self.packed, training, "torch")
        self.batches = [self._tokens(number) for number in range(_BATCHES)]
        self.arms: list[Arm] = []
        self.step_number = 0

    def run(self) -> None:
        self._describe()
        if self.task.levers and self.on_gpu:
            self._levers()
        if self.on_gpu:
            self._choose_optimizer()
        self.recorder.write("optimizer", way=self.optimizer.way, **vars(self.optimizer.shape))
        for arm in self.task.arms:
            self._prepare(arm)
        self.recorder.write(
            "states", bytes=sum(_bytes(each) for state in self.optimizer.state.values() for each in state.values())
        )
        gc.collect()
        gc.freeze()  # what lives already is not looked through again and again
        for number in range(self.task.rounds):
            if self.recorder.seconds > self.task.seconds:
                self.recorder.write("out_of_time", rounds=number)
                break
            # To and fro, so that no arm always comes after the same one.
            for each in list(self.arms) if number % 2 == 0 else self.arms[::-1]:
                self._turn(each, number)
        self.recorder.write("end")

    def _tokens(self, number: int) -> Tensor:
        training = self.task.training
        generator = torch.Generator().manual_seed(training.seed + number)
        shape = (training.micro_batch_size, training.sequence_length + 1)
        return torch.randint(self.task.model.vocab_size, shape, generator=generator).to(self.device)

    def _describe(self) -> None:
        environment = probe("cuda" if self.on_gpu else "cpu", PythonSourceData())
        parameters = list(self.packed.parameters())
        self.recorder.write(
            "environment",
            environment=environment.model_dump(mode="json"),
            cudnn=torch.backends.cudnn.version() if self.on_gpu else None,  # type: ignore[no-untyped-call]
            energy_missing=self.energy.missing,
            parameters=sum(parameter.numel() for parameter in parameters),
            weight_bytes=sum(map(_bytes, parameters)),
            tokens_per_step=self.batches[0][:, 1:].numel(),
        )

    def _levers(self) -> None:
        """Parts by themselves; each found is used in every arm. One that fails, for want of memory say, costs no other."""
        training, model = self.task.training, self.task.model
        with self._guarded("memory"):
            self.recorder.write("memory", bytes_per_second=copy_bandwidth(self.device))
        tokens = training.micro_batch_size * training.sequence_length
        for shape in (GemmShape("square", "forward", 8192, 8192, 8192, 0), *step_gemms(model, tokens)):
            with self._guarded(f"{shape.name} {shape.gemm}"):
                self.recorder.write("gemm", **measure_gemm(shape, self.device))
        with self._guarded("attention"):
            self._attention_levers()

    def _attention_levers(self) -> None:
        """Time them; key and value heads are repeated where that is faster."""
        training, model = self.task.training, self.task.model
        attention = []
        for row in attention_levers(model, training.micro_batch_size, training.sequence_length, self.device):
            self.recorder.write("attention", **row)
            attention.append(row)
        torch.cuda.empty_cache()
        if repeating_pays(attention):
            for layer in self.packed.layers:
                assert isinstance(layer, PackedLayer)
                layer.repeat_kv = True

    def _choose_optimizer(self) -> None:
        """Every arm's step has the fastest way that rounds to nearest: a slow one would hide what FP8 gains."""
        found: list[Row] = []
        with self._guarded("optimizers"):
            for row in optimizer_levers(self.optimizer, self.task.training.grad_clip_norm):
                self.recorder.write("optimizer_lever", **row)
                found.append(row)
        self.optimizer.way, self.optimizer.shape = best_way(found)

    @contextmanager
    def _guarded(self, lever: str) -> Iterator[None]:
        """A lever that fails is told."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it must not end the others
            traceback.print_exc()
            self.recorder.write("lever_failed", lever=lever, error=f"{type(error).__name__}: {str(error)[:300]}")
            self._clear()

    def _prepare(self, arm: MeasuredArm) -> None:
        """Build an arm and warm it up: compilation, caches, amax histories. One that fails is left out and said."""
        try:
            began = time.perf_counter()
            tokens = self.task.training.micro_batch_size * self.task.training.sequence_length
            built = build_arm(arm, self.packed, tokens)
            wait(self.on_gpu)
            built_s, first_began = time.perf_counter() - began, time.perf_counter()
            self._steps(built, 1)
            first_s = time.perf_counter() - first_began
            _, losses, _ = self._steps(built, self.task.warm_up)
        except Exception as error:  # noqa: BLE001 - a lever that fails must not end the others
            traceback.print_exc()
            self.recorder.write("arm_failed", arm=arm.name, error=f"{type(error).__name__}: {str(error)[:2000]}")
            self._clear()
            return
        self.arms.append(built)
        self.recorder.write(
            "arm",
            arm=arm.name,
            settings=arm.model_dump(mode="json"),
            built_s=built_s,
            first_step_s=first_s,
            fp8_share=built.fp8_share,
            fp8_weights=built.fp8_weights,
            warm_up_losses=losses,
        )

    def _turn(self, arm: Arm, number: int) -> None:
        """Some steps of one arm, on record."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            # The first step after another arm finds the memory cut as that one needed it: it is run and not counted.
            self._steps(arm, 1)
            before = self.energy.joules()
            began = time.perf_counter()
            parts, losses, held = self._steps(arm, self.task.steps)
            wall_s = time.perf_counter() - began
            after = self.energy.joules()
        except Exception as error:  # noqa: BLE001 - as above
            traceback.print_exc()
            self.recorder.write("turn_failed", arm=arm.name, round=number, error=f"{type(error).__name__}: {str(error)[:2000]}")
            self.arms.remove(arm)
            self._clear()
            return
        self.recorder.write(
            "turn",
            arm=arm.name,
            round=number,
            steps=parts,
            wall_s=wall_s,
            losses=losses,
            joules=None if before is None or after is None else after - before,
            peak_bytes=torch.cuda.max_memory_allocated(self.device) if self.on_gpu else None,
            held_bytes=held,
            quantized_tensors=arm.quantized(),
            clock_mhz=self.energy.clock_mhz(),
        )

    def _steps(self, arm: Arm, count: int) -> tuple[list[dict[str, float]], list[float], dict[str, int | None]]:
        """Steps in a row, never waiting in between: each one's parts in seconds, losses, bytes held in the last one."""
        clock = Clock(self.device)
        losses: list[Tensor] = []
        held: dict[str, int | None] = {}
        clock.mark()
        for _ in range(count):
            training = self.task.training
            set_learning_rate(self.optimizer, learning_rate(training, self.step_number % training.num_steps))
            held["before"] = self._allocated()
            loss = arm.loss(self.batches[self.step_number % _BATCHES])
            clock.mark()
            held["after_forward"] = self._allocated()
            loss.backward()  # type: ignore[no-untyped-call]
            clock.mark()
            held["after_backward"] = self._allocated()
            self.optimizer.clipped_step(training.grad_clip_norm)
            self.optimizer.zero_grad()
            clock.mark()
            losses.append(loss.detach())
            self.step_number += 1
        seconds = clock.seconds()
        names = ("forward", "backward", "optimizer")
        parts = [dict(zip(names, seconds[3 * step : 3 * step + 3], strict=True)) for step in range(count)]
        return parts, [float(loss) for loss in losses], held

    def _allocated(self) -> int | None:
        return torch.cuda.memory_allocated(self.device) if self.on_gpu else None

    def _clear(self) -> None:
        self.optimizer.zero_grad()
        release_memory(self.device)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def main(arguments: list[str]) -> int:
    exit_with_parent()
    request, output = arguments
    task = Measure.model_validate_json(Path(request).read_bytes())
    try:
        device = choose_device(task.device)
        with Path(output).open("ab") as file:
            Measurement(task, device, Recorder(file)).run()
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
