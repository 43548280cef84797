"""Long fuzzing of the log readers and the whole comparison, guided by coverage (atheris): it finds nothing, or fails."""

import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

SECONDS = 120

_PROGRAM = """
import sys, tempfile
from pathlib import Path
import atheris
with atheris.instrument_imports(include=["fp8migrate.records", "fp8migrate.evidence"]):
    import fp8migrate.engine.compare
from tests.hostile import answer, healthy
folder = Path(tempfile.mkdtemp())
baseline = healthy(folder)
def one(data):
    said = answer(data, folder, baseline)
    assert said != "PASS", "a hostile log passed"
atheris.Setup(sys.argv, one)
atheris.Fuzz()
"""


def run() -> Iterator[tuple[str, str]]:
    """`make bench` needs atheris for it (pip install atheris); without it the fuzzing is skipped, and says so."""
    if find_spec("atheris") is None:
        yield "fuzzing", "skipped: atheris is not installed"
        return
    from tests.hostile import SEEDS

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for name, content in SEEDS.items():
            (corpus / name.replace(" ", "-")).write_bytes(content)
        limits = [
            f"-max_total_time={SECONDS}",
            "-timeout=20",
            "-rss_limit_mb=2048",
            "-max_len=20000",
            f"-artifact_prefix={folder}/",
        ]
        command = [sys.executable, "-c", _PROGRAM, *limits, str(corpus)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            for found in Path(folder).glob("*-*"):
                print(f"{found.name}: {b64encode(found.read_bytes()).decode()}")
            raise AssertionError(f"the fuzzer found something:\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}")
        runs = [line for line in done.stderr.splitlines() if line.startswith("Done ")]
        yield "fuzzing of readers and comparison", runs[0] if runs else "no crash, no hang, no PASS"
