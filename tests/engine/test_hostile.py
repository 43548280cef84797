"""Hostile logs: never a traceback, never a hang, never a PASS."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp8migrate.records.readers import read_log
from fp8migrate.records.source import Source
from tests.hostile import SEEDS, among_others, answer, healthy


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return healthy(tmp_path_factory.mktemp("baseline"))


@pytest.mark.parametrize("name", [name for name in SEEDS if name != "deepspeed"])
def test_the_seeds_are_logs(name: str, tmp_path: Path) -> None:
    """What the mutations start from is read, each by a reader of its own."""
    path = tmp_path / "loss"  # MLflow's file is named after its metric
    path.write_bytes(SEEDS[name])
    (record,) = read_log(Source("loss", path))
    # LitGPT's step 0 is the one before any update.
    assert max(series.steps.size for series in record.losses) == (79 if name == "litgpt" else 80)


LINE = b'{"step": %d, "loss": %s}\n'
CASES: dict[str, bytes] = {
    "empty": b"",
    "blank": b"\n" * 1000,
    "binary": bytes(range(256)) * 4096,
    "NUL bytes": SEEDS["jsonl"].replace(b"loss", b"lo\0ss"),
    "NUL file": b"\0" * 100_000,
    "broken UTF-8": SEEDS["jsonl"].replace(b"loss", b"lo\xff\xfess"),
    "UTF-16": SEEDS["csv"].decode().encode("utf-16"),
    "a megabyte in one line": b'{"step": 1, "loss": 3.0, "x": "' + b"y" * (1 << 20) + b'"}\n',
    "megabyte lines": (b"iteration " + b"1" * (1 << 20) + b"\n") * 4,
    "a line without end": b"step:" * (1 << 20),
    "JSON bomb": b"[" * 200_000,
    "nested JSON line": b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
    "wide JSON": b"{" + b", ".join(b'"k%d": 1' % k for k in range(200_000)) + b"}\n",
    "a million columns": b"step,loss," + b",".join(b"c%d" % k for k in range(1_000_000)) + b"\n" + b"1," * 1_000_001 + b"1\n",
    "unclosed quote": b'step,loss\n"' + b"1,2\n" * 50_000,
    "step 1e300": b"".join(LINE % (1, b"3.0") for _ in range(2)) + b'{"step": 1e300, "loss": 3}\n',
    "only step 1e300": b'{"step": 1e300, "loss": 3}\n' * 50,
    "negative steps": b"".join(b'{"step": -%d, "loss": 3.%d}\n' % (s, s) for s in range(50)),
    "steps backwards": b"".join(LINE % (s, b"3.%d" % s) for s in range(60, 0, -1)),
    "steps NaN": b'{"step": NaN, "loss": 3}\n' * 50,
    "steps as text": b'{"step": "first", "loss": 3}\n' * 50,
    "loss as text": b"".join(LINE % (s, b'"good"') for s in range(50)),
    "loss as list": b"".join(LINE % (s, b"[1, 2]") for s in range(50)),
    "huge integers": b"".join(LINE % (s, b"9" * 400) for s in range(50)),
    "integers past float": b"".join(LINE % (s, b"1e999") for s in range(50)),
    "zero loss": b"".join(LINE % (s, b"0") for s in range(50)),
    "negative loss": b"".join(LINE % (s, b"-3.5") for s in range(50)),
    "alternating resumes": b"".join(LINE % (s % 2, b"3.5") for s in range(5000)),
    "gzip torn": gzip.compress(SEEDS["jsonl"])[:-20],
    "gzip bomb": gzip.compress(b"0" * (64 << 20)),
    "gzip of gzip": gzip.compress(gzip.compress(SEEDS["jsonl"])),
    "not gzip": b"\x1f\x8b" + b"nonsense" * 100,
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_logs(case: str, baseline: Path, tmp_path: Path) -> None:
    assert answer(CASES[case], tmp_path, baseline) in ("refused", "FAIL", "INCONCLUSIVE")


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_baseline(case: str, baseline: Path, tmp_path: Path) -> None:
    """The same, on the other side."""
    (tmp_path / "hostile").write_bytes(CASES[case])
    content = next(iter(sorted(baseline.iterdir()))).read_bytes()
    assert answer(content, tmp_path, tmp_path / "hostile") in ("refused", "FAIL", "INCONCLUSIVE")


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A whole log with a few places overwritten, repeated, cut out, or with hostile tokens put in."""
    content = bytearray(SEEDS[draw(st.sampled_from(sorted(SEEDS)))])
    tokens = (
        b"\0",
        b"\xff",
        b"NaN",
        b"-",
        b"1e300",
        b"Infinity",
        b'"',
        b"{",
        b"[",
        b"\n",
        b"\r",
        b",",
        b"|",
        b"\x1b[31m",
        b"null",
    )
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        length = draw(st.integers(0, 200))
        kind = draw(st.sampled_from(("token", "bytes", "cut", "repeat", "swap")))
        if kind == "token":
            content[at : at + draw(st.integers(0, 8))] = draw(st.sampled_from(tokens))
        elif kind == "bytes":
            content[at : at + length] = draw(st.binary(max_size=64))
        elif kind == "cut":
            del content[at : at + length]
        elif kind == "repeat":
            content[at:at] = content[at : at + length] * draw(st.integers(1, 4))
        else:
            content[at:] = content[at:][::-1] if draw(st.booleans()) else content[at:] + content[:at]
    return bytes(content)


@settings(max_examples=150, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=mutated() | st.binary(max_size=2000))
def test_mutated_logs(content: bytes, baseline: Path, tmp_path: Path) -> None:
    assert answer(content, tmp_path, baseline) in ("refused", "FAIL", "INCONCLUSIVE")


@st.composite
def damages(draw: st.DrawFn) -> tuple[int, int, bytes]:
    """Where, how much is lost, and what stands there instead."""
    return (
        draw(st.integers(0, 1_000_000)),
        draw(st.integers(0, 40_000)),
        draw(
            st.sampled_from(
                (b"", b"\0" * 50, b"\xff\xfe", b"\n", b"NaN", b'"loss": NaN', b"}\n{", b"Traceback (most recent call last):\n")
            )
        ),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages())
def test_a_log_that_lost_points_spoils_the_pass_of_its_group(damage: tuple[int, int, bytes], tmp_path: Path) -> None:
    """Five good runs pass. Where one of them has lost some of its losses they do not."""
    at, lost, instead = damage

    def spoil(whole: bytes) -> bytes:
        place = at % len(whole)
        return whole[:place] + instead + whole[place + lost :]

    said, before, after = among_others(spoil, tmp_path)
    assert said != "PASS" or after >= before


@pytest.mark.parametrize("value", ["1e200", "1e308", "-1e200"])
def test_one_absurd_loss(value: str, baseline: Path, tmp_path: Path) -> None:
    """Found by a newcomer's fuzzing: its square leaves float64."""
    content = next(iter(sorted(baseline.iterdir()))).read_bytes().splitlines(keepends=True)
    content[500] = b'{"step": 501, "loss": ' + value.encode() + b"}\n"
    assert answer(b"".join(content), tmp_path, baseline) in ("FAIL", "INCONCLUSIVE")
