"""What importing costs: the commands start at once, and nothing outside the worker needs torch."""

import subprocess
import sys

import pytest

import fp8migrate


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["fp8migrate", "fp8migrate.cli", "fp8migrate.engine.study", "fp8migrate.report", "fp8migrate.terminal"]
)
def test_nothing_but_the_worker_imports_torch(module: str) -> None:
    assert not modules_after(f"import {module}") & {"torch", "safetensors", "transformer_engine"}


def test_help_loads_none_of_the_heavy_libraries() -> None:
    """--help is to be there under 0.3 s; the benchmark times it, this holds what makes it so."""
    loaded = modules_after("import fp8migrate.cli")
    assert not loaded & {"numpy", "scipy", "pandas", "matplotlib", "pydantic", "yaml", "orjson", "jinja2"}


def test_the_version_is_one() -> None:
    assert fp8migrate.__version__.count(".") == 2


@pytest.mark.parametrize("package", ["fp8migrate.checks", "fp8migrate.statistics"])
def test_judging_does_not_import_scipy_stats(package: str) -> None:
    """It takes a second, which every command would pay."""
    every_module = f"[importlib.import_module(f'{package}.{{m.name}}') for m in pkgutil.iter_modules({package}.__path__)]"
    loaded = modules_after(f"import importlib, pkgutil, {package}\n{every_module}")
    assert f"{package}.{'parity' if package.endswith('checks') else 'power'}" in loaded
    assert "scipy.stats" not in loaded
