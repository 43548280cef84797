"""How soon a command answers: --help against Python's own start and a bare typer program."""

import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

_BARE = "import typer\napp = typer.Typer(add_completion=False)\n@app.command()\ndef f() -> None: ...\napp(['--help'])"
_REPEATS = 9


def seconds(arguments: list[str]) -> float:
    """Median wall-clock time of a process."""
    found = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
        found.append(time.perf_counter() - started)
    return median(found)


def run() -> Iterator[tuple[str, str]]:
    yield "fp8migrate --help (target: under 0.3 s)", f"{seconds(['-m', 'fp8migrate', '--help']):.3f} s"
    yield "peer: a typer program of one empty command, --help", f"{seconds(['-c', _BARE]):.3f} s"
    yield "peer: python -c pass", f"{seconds(['-c', 'pass']):.3f} s"
