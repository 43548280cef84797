"""Checkpoints: weights, optimizer and scaling state in one safetensors file, written whole or not at all.

Nothing in a checkpoint is executed when it is read. Names: `model.<parameter>`, `optimizer.<parameter>.<state>`,
`scaling.<buffer>`; the step and the running digest of the data stand in the metadata.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.records.files import sync_directory


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint as read. tensors are on the CPU."""

    tensors: Mapping[str, Tensor]
    step: int
    data_sha256: str
    quantized_tensors: int
    path: Path


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything that the next step depends on, as named CPU tensors."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    state = {f"model.{name}": parameter.detach() for parameter, name in names.items()}
    state |= {f"scaling.{name}": buffer for name, buffer in _scaling_buffers(model).items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in optimizer.state[parameter].items():
                state[f"optimizer.{names[parameter]}.{key}"] = value
    return {name: tensor.to("cpu").contiguous() for name, tensor in state.items()}


def save(path: Path, state: Mapping[str, Tensor], step: int, data_sha256: str, quantized_tensors: int) -> None:
    """Write beside, sync, rename: a reader sees the whole file or none. Raises OSError where the disk refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    metadata = {"step": str(step), "data_sha256": data_sha256, "quantized_tensors": str(quantized_tensors)}
    try:
        save_file(dict(state), temporary, metadata=metadata)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        # The checkpoint before this one is about to go: the new name must survive a power cut first.
        sync_directory(path.parent)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises UsageError where the file is not one of ours."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        step, quantized = int(metadata["step"]), int(metadata["quantized_tensors"])
        return Checkpoint(tensors, step, metadata["data_sha256"], quantized, path)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UsageError(f"not a checkpoint of this tool: {error}", where=str(path)) from error


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, *, same_run: bool) -> None:
    """Put a checkpoint into a model and its optimizer.

    same_run: a resumed run must find its scaling state; a run that starts from another arm's checkpoint begins with its own.
    Raises UsageError where names or shapes do not fit.
    """
    # detach() shares the version counter, .data does not: layers that keep a copy of a weight must notice that it changed.
    wanted = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
    if same_run:
        wanted |= {f"scaling.{name}": buffer for name, buffer in _scaling_buffers(model).items()}
    for name, target in wanted.items():
        found = checkpoint.tensors.get(name)
        if found is None or found.shape != target.shape:
            what = "is missing" if found is None else f"has shape {tuple(found.shape)}, the model {tuple(target.shape)}"
            raise UsageError(f"{name} {what}", where=str(checkpoint.path), next_step="Was it saved by another model?")
        with torch.no_grad():
            target.copy_(found)
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        state = {key.removeprefix(prefix): value for key, value in checkpoint.tensors.items() if key.startswith(prefix)}
        # The step counter stays where the optimizer made it; moments go to the parameter's device.
        optimizer.state[parameter] = {
            key: value.clone() if value.ndim == 0 and parameter.device.type == "cpu" else value.to(parameter.device)
            for key, value in state.items()
        }


def _scaling_buffers(model: nn.Module) -> dict[str, Tensor]:
    persistent = model.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in model.named_buffers() if name in persistent}
