"""Commands as a user gives them: in a process of their own, in an empty folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]

# A plan that is over in seconds and too small to decide anything.
TINY_PLAN = """\
name: tiny
model: {num_layers: 1, hidden_size: 32, num_heads: 2, num_kv_heads: 1, ffn_hidden_size: 64}
data: {kind: python_source, validation_tokens: 1024}
training:
  num_steps: 24
  sequence_length: 32
  micro_batch_size: 2
  global_batch_size: 4
  learning_rate: 1e-2
  warmup_steps: 4
  beta2: 0.7
candidate: {backend: emulated, recipe: {kind: current}, keep_bf16: [lm_head]}
design:
  branch: {at: 0.5, pairs: 2}
  floor_pairs: 2
phases: {small_scale: {shrink: 1}}
launch: {device: cpu}
"""


@pytest.fixture
def fp8migrate(tmp_path: Path) -> Command:
    """Run the command in tmp_path; stdout and stderr are captured apart."""

    def run(*arguments: str, timeout: float = 240, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fp8migrate", *arguments],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY_PLAN)
    return path
