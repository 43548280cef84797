"""A plan that loads, to be spoilt one key at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fp8migrate.errors import ExitCode, PlanError
from fp8migrate.plan.load import load_plan

GOOD = """\
name: llama-small
model: {kind: llama, num_layers: 2, hidden_size: 64, num_heads: 4, num_kv_heads: 2, ffn_hidden_size: 176}
training:
  num_steps: 600
  sequence_length: 128
  micro_batch_size: 4
  global_batch_size: 8
  learning_rate: 1e-3
  warmup_steps: 40
candidate:
  recipe: {kind: delayed, amax_history_len: 16}
design:
  screen: {num_steps: 60}
"""


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[str | bytes], str]:
    """The message that a plan's text is refused with; the file is called plan.yaml in it."""

    def refuse(text: str | bytes) -> str:
        path = tmp_path / "plan.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(PlanError) as caught:
            load_plan(path)
        assert caught.value.exit_code == ExitCode.USAGE
        return str(caught.value).replace(str(path), "plan.yaml").replace(str(tmp_path), ".")

    return refuse
