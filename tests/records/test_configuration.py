"""Configurations beside logs: found, read safely, and written alike."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp8migrate.records.configuration import configuration_beside, normal


def beside(folder: Path, name: str, content: str | bytes, log: str = "run.log") -> dict[str, str]:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return dict(configuration_beside(folder / log).settings)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-2", "0.01"),
        (".01", "0.01"),
        ("64", "64"),
        ("64.0", "64"),
        ("True", "true"),
        ("null", "none"),
        ("", "none"),
        ("bf16", "bf16"),
    ],
)
def test_one_value_is_written_in_many_ways(written: str, meant: str) -> None:
    assert normal(written) == meant


def test_a_log_has_its_own_configuration_before_the_folder_s(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("lr: 1\n")
    assert beside(tmp_path, "run.config.yaml", "lr: 2\n") == {"lr": "2"}
    assert beside(tmp_path, "other.txt", "", log="other.log") == {"lr": "1"}
    assert beside(tmp_path, "run.config.yaml", "lr: 3\n", log="run.log.gz") == {"lr": "3"}


def test_flags_nested_settings_and_lists_are_flat(tmp_path: Path) -> None:
    content = "MODEL_ARGS:\n  --num-layers: 12\n  --bf16: true\noptim: {betas: [0.9, 0.95], groups: [{lr: 1e-3}, {lr: 2e-3}]}\n"
    assert beside(tmp_path, "run.config.yaml", content) == {
        "MODEL_ARGS.num_layers": "12",
        "MODEL_ARGS.bf16": "true",
        "optim.betas": "[0.9, 0.95]",
        "optim.groups[0].lr": "0.001",
        "optim.groups[1].lr": "0.002",
    }


def test_json_too(tmp_path: Path) -> None:
    assert beside(tmp_path, "args.json", '{"lr": 0.001, "fp8": false, "name": null}') == {
        "lr": "0.001",
        "fp8": "false",
        "name": "none",
    }


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + k)}: &{chr(98 + k)} [" + ", ".join([f"*{chr(97 + k)}"] * 9) + "]\n" for k in range(9)
)


@pytest.mark.parametrize(
    "content",
    [
        BOMB,
        "{" * 5000,
        "a: " + "[" * 2000 + "]" * 2000,
        "!!python/object/apply:os.system ['true']",
        "- a\n- b\n",
        "just text",
        "\0\0",
        b"\xff\xfe\x00",
        "a: b: c",
        "x" * (2 << 20),
    ],
    ids=["alias bomb", "braces", "brackets", "python object", "list", "text", "NUL", "bytes", "broken", "too large"],
)
def test_what_is_no_configuration_is_a_problem_and_no_crash(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "run.config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = configuration_beside(tmp_path / "run.log")
    assert not found.settings or "python/object" in str(content)
    assert found.problems or found.settings


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    for name in ("run.config.yaml", "run.config.json"):
        (tmp_path / name).write_bytes(content)
        found = configuration_beside(tmp_path / "run.log")
        assert all(isinstance(value, str) for value in found.settings.values())
        (tmp_path / name).unlink()
