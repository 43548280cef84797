"""What a job's start costs: torch's compiler is not imported, the standard library is read once."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

from fp8migrate.worker.data.python_source import load_documents
from fp8migrate.worker.optimizer import AdamW
from tests.worker.runs import DELAYED, make_run, train_task

_RUN_AND_TELL = """
import sys
from fp8migrate.worker.__main__ import main
code = main(["run", sys.argv[1]])
print(code, [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_a_whole_job_does_not_import_the_compiler(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "a", train_task(DELAYED, last_step=2, validate_at=(2,)))
    command = [sys.executable, "-c", _RUN_AND_TELL, str(directory)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == "0 []"


def trained_by(kind: type[torch.optim.AdamW]) -> tuple[list[Tensor], list[int]]:
    """Weights after five updates, and how often a step hook was called."""
    torch.manual_seed(0)
    model, calls = nn.Linear(16, 8), list[int]()
    optimizer = kind(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for _ in range(5):
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()], calls


def test_the_optimizer_is_torchs_to_the_bit() -> None:
    weights, calls = trained_by(AdamW)
    expected, _ = trained_by(torch.optim.AdamW)
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
    assert len(calls) == 5


def test_an_update_is_seen_in_the_weights_version() -> None:
    model = nn.Linear(4, 4)
    optimizer = AdamW(model.parameters(), lr=1e-2, fused=True)
    model(torch.ones(1, 4)).sum().backward()
    before = [parameter._version for parameter in model.parameters()]
    optimizer.step()
    assert all(parameter._version > version for parameter, version in zip(model.parameters(), before, strict=True))


def test_documents_are_the_librarys_modules_in_order() -> None:
    """Against pathlib's own search, which enters installed packages too and takes a second for it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    library = [path for path in modules if not {"site-packages", "dist-packages"} & set(path.parts)]
    expected = [path.as_posix() for path in library if 256 <= (root / path).stat().st_size <= 262_144]
    documents = load_documents()
    assert [name for name, _ in documents] == expected
    assert dict(documents)["json/decoder.py"] == (root / "json" / "decoder.py").read_bytes()
