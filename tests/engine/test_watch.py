"""Following a log: what is read again and when, what is waited for, where a watch ends, how it is shown."""

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fp8migrate.engine.watch import GrowingLog, LiveScreen, NotYetError, PlainScreen, Request, follow, request_of, watch_run
from fp8migrate.errors import ExitCode, UsageError
from fp8migrate.evidence.live import LiveState
from fp8migrate.records.readers.base import Options
from fp8migrate.report.live_view import last_words, plain_line, view

STEPS = 500
RUN = 1 + 2 * np.exp(-np.arange(STEPS) / 100)


def lines(values: np.ndarray, first: int = 1, **more: object) -> str:
    return "".join(json.dumps({"step": first + i, "loss": float(v), **more}) + "\n" for i, v in enumerate(values))


@pytest.fixture
def bf16(tmp_path: Path) -> tuple[str, ...]:
    """Three BF16 logs that lie 0.1 % apart."""
    names = []
    for place, offset in enumerate((0.0, 0.001, -0.001)):
        (tmp_path / f"bf16-{place}.jsonl").write_text(lines(RUN * (1 + offset)))
        names.append(str(tmp_path / f"bf16-{place}.jsonl"))
    return tuple(names)


def asked(log: Path, bf16: tuple[str, ...], **changes: Any) -> Request:
    options: dict[str, Any] = {"margin": "standard", "serve": "bf16", "forward_penalty": "0", "every": 5.0, "once": False}
    options |= {"format_name": "", "columns": (), "baseline": bf16, "floor": (), "run": str(log)} | changes
    return request_of(**options)


class Shown:
    """A screen that remembers."""

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.states: list[LiveState] = []

    def waiting(self, why: str) -> None:
        self.waited.append(why)

    def show(self, state: LiveState, *, grown: bool) -> None:
        if grown:
            self.states.append(state)


def happening(*events: Callable[[], object]) -> Callable[[float], None]:
    """A sleep in which something happens; after the last event nothing does, and it is a mistake to sleep on."""
    left = iter(events)

    def sleep(seconds: float) -> None:
        assert seconds == 5.0
        next(left)()

    return sleep


def test_a_log_is_followed_until_it_alarms(tmp_path: Path, bf16: tuple[str, ...]) -> None:
    run, bad = tmp_path / "run.jsonl", RUN * 1.02

    def grow(start: int, stop: int) -> Callable[[], object]:
        def event() -> None:
            with run.open("a") as file:
                file.write(lines(bad[start:stop], start + 1))

        return event

    shown = Shown()
    state = follow(
        asked(run, bf16), shown, happening(grow(0, 12), lambda: None, *(grow(i, i + 12) for i in range(12, 240, 12)))
    )
    assert shown.waited == [f"{run}: is not there yet; waiting for it"]
    assert state.alarm is not None
    assert (state.alarm.kind, state.alarm.step) == ("wealth", 40)
    # Nothing was read while nothing changed, and nothing after the alarm.
    assert [one.step for one in shown.states] == [12, 24, 36, 48]


def test_the_end_is_told_and_is_no_pass(tmp_path: Path, bf16: tuple[str, ...]) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(lines(RUN[:250] * 1.0005))
    state = follow(asked(run, bf16), Shown(), happening(lambda: run.write_text(lines(RUN * 1.0005))))
    assert state.alarm is None
    (said,) = last_words(state)
    assert said.startswith("no alarm until step 500 of 500 (the baseline ends here")
    assert said.endswith("a watch never passes a run")


def test_a_torn_last_line_is_no_value(tmp_path: Path) -> None:
    run = tmp_path / "run.csv"
    run.write_text("step,loss\n1,2.345\n2,2.3")
    record = GrowingLog(str(run), Options()).read()
    assert record is not None
    assert record.series["training_loss"].values.tolist() == [2.345]
    run.write_text("step,loss\n1,2.345\n2,2.311\n12")
    again = GrowingLog(str(run), Options()).read()
    assert again is not None
    assert again.series["training_loss"].values.tolist() == [2.345, 2.311]


def test_a_log_that_is_cut_or_replaced_is_read_anew_and_said(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(lines(RUN[:50]))
    log = GrowingLog(str(run), Options())
    assert log.read() is not None
    assert (log.read(), log.notice) == (None, "")
    run.write_text(lines(RUN[:20]))
    cut = log.read()
    assert cut is not None
    assert cut.series["training_loss"].steps[-1] == 20
    assert "was cut or replaced" in log.notice
    other = tmp_path / "other.jsonl"
    other.write_text(lines(RUN[:60]))
    os.replace(other, run)
    assert log.read() is not None
    assert "was cut or replaced" in log.notice
    run.unlink()
    with pytest.raises(NotYetError, match="not there yet"):
        log.read()


def test_a_resume_that_goes_back_replaces(tmp_path: Path, bf16: tuple[str, ...]) -> None:
    """The steps after the checkpoint were bad; what the resumed run logs takes their place."""
    run = tmp_path / "run.jsonl"
    run.write_text(lines(RUN[:200]) + lines(RUN[200:220] * 1.5, 201) + lines(RUN[200:300] * 1.0002, 201))
    state = follow(asked(run, bf16, once=True), Shown())
    assert state.alarm is None
    assert state.step == 300
    assert np.nanmax(state.blocks.gaps) < 0.001


def test_of_runs_that_follow_one_another_in_a_file_the_last_is_live(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(lines(RUN[:30]) + lines(RUN[:10]))
    record = GrowingLog(str(run), Options()).read()
    assert record is not None
    assert record.series["training_loss"].steps.size == 10


def test_named_runs_of_a_file_are_chosen(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(lines(RUN[:30], run="old") + lines(RUN[:10], run="new"))
    record = GrowingLog(f"{run}::n*", Options()).read()
    assert record is not None
    assert record.name == "new"
    with pytest.raises(UsageError, match="which one is live"):
        GrowingLog(str(run), Options()).read()
    with pytest.raises(NotYetError, match="holds no run named"):
        GrowingLog(f"{run}::x*", Options()).read()


@pytest.mark.parametrize("content", ["", "\n\n", "starting up\n", '{"step": 1, "lr": 0.1}\n', '{"step": 1, "loss": 2'])
def test_a_log_without_a_loss_yet_is_waited_for(tmp_path: Path, bf16: tuple[str, ...], content: str) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(content)
    shown = Shown()
    state = follow(asked(run, bf16), shown, happening(lambda: None, lambda: run.write_text(lines(RUN))))
    assert state.over
    assert shown.waited
    run.write_text(content)
    with pytest.raises(UsageError):
        follow(asked(run, bf16, once=True), Shown())


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"margin": "0"}, "above zero"),
        ({"margin": "loose"}, "no fraction"),
        ({"serve": "fp4"}, "no precision"),
        ({"every": 0.0}, "number of seconds"),
        ({"run": "-"}, "standard input"),
        ({"forward_penalty": "-1"}, "no fraction"),
        ({"baseline": ("\x1b[31mnothing",)}, "matches no file|cannot be read"),
        ({"floor": ("nothing*.log",)}, "matches no file"),
    ],
)
def test_refusals(tmp_path: Path, bf16: tuple[str, ...], changes: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        watch_run(asked(tmp_path / "run.jsonl", bf16, **changes))
    assert "\x1b" not in str(refused.value)


def hostile() -> Iterator[bytes]:
    good = lines(RUN[:100]).encode()
    yield good + b"\0" * 5000 + b"\n" + good[-200:]
    yield b"\0" * 100_000
    yield good + b"x" * 3_000_000 + b"\n" + lines(RUN[100:120], 101).encode()
    yield b'{"step": 1, "loss": ' + b"[" * 100_000 + b"\n" + good
    yield good + b"\xff\xfe\xfd" * 1000 + b"\n"
    yield lines(RUN[:100], run="\x1b]0;title\x07\x1b[2J", **{"\x1b[31mred": 1}).encode()
    yield b"\x1f\x8b" + os.urandom(500)
    yield good.replace(b'"step": 50', b'"step": 1e308').replace(b'"step": 60', b'"step": -5')


@pytest.mark.parametrize("content", tuple(hostile()), ids=range(8))
def test_hostile_logs_are_judged_or_refused_and_never_reach_the_terminal(
    tmp_path: Path, bf16: tuple[str, ...], content: bytes
) -> None:
    run = tmp_path / "a\x1b[31mb.jsonl"
    run.write_bytes(content)
    out, errors = io.StringIO(), io.StringIO()
    screen = PlainScreen(Console(file=out, soft_wrap=True), Console(file=errors, soft_wrap=True))
    try:
        state = follow(asked(run, bf16, once=True), screen)
    except UsageError:
        return
    assert view(state, 80, 40).plain.isprintable() or "\x1b" not in view(state, 80, 40).plain
    shown = out.getvalue() + errors.getvalue() + view(state, 80, 40).plain + plain_line(state) + "".join(last_words(state))
    assert not {"\x1b", "\0", "\x07"} & set(shown)


def test_a_line_for_each_new_block_and_warnings_once(tmp_path: Path, bf16: tuple[str, ...]) -> None:
    run = tmp_path / "run.jsonl"
    out, errors = io.StringIO(), io.StringIO()
    screen = PlainScreen(Console(file=out, soft_wrap=True), Console(file=errors, soft_wrap=True))
    grown = [lambda stop=stop: run.write_text(lines(RUN[:stop] * 1.02)) for stop in (4, 5, 6, 7, 10, 30)]
    run.write_text("")
    request = asked(run, bf16, forward_penalty="")
    with pytest.raises(StopIteration):
        follow(request, screen, happening(*grown))
    assert [line.split(":")[0] for line in out.getvalue().splitlines()] == ["step 5 of 500", "step 10 of 500", "step 30 of 500"]
    assert "gap +2.00 % (limit 1.75 %)" in out.getvalue()
    assert errors.getvalue().count("judged as logged") == 1
    assert errors.getvalue().count("waiting for it") == 1


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("height", [10, 24, 60])
@pytest.mark.parametrize("points", [1, 7, 250, 500])
def test_the_view_fits(tmp_path: Path, bf16: tuple[str, ...], width: int, height: int, points: int) -> None:
    run = tmp_path / f"{'long' * 30}.jsonl"
    run.write_text(lines(RUN[:points] * 1.02, grad_norm=0.5))
    state = follow(asked(run, bf16, once=True), Shown())
    drawn = view(state, width, height, "the log has not grown for 3 min").plain.split("\n")
    assert max(map(len, drawn)) <= width
    assert len(drawn) <= max(height, 14)
    assert any("gradient norm 0.5" in line for line in drawn)
    if points == 500:
        assert any("ALARM at step 40" in line for line in drawn)
    if height >= 24 and points > 1:
        assert any(0x2800 < ord(letter) < 0x2900 for line in drawn for letter in line)
        assert any("· baseline" in line for line in drawn)


def test_the_view_is_redrawn_on_a_terminal(tmp_path: Path, bf16: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    run = tmp_path / "run.jsonl"
    out = io.StringIO()
    with LiveScreen(Console(file=out, force_terminal=True, width=70, height=30)) as screen:
        follow(
            asked(run, bf16), screen, happening(lambda: run.write_text(lines(RUN[:100])), lambda: run.write_text(lines(RUN)))
        )
    shown = out.getvalue()
    assert "is not there yet" in shown
    assert "step 100 of 500" in shown
    assert "step 500 of 500" in shown
    assert "\x1b[38" not in shown


def test_exit_codes(tmp_path: Path, bf16: tuple[str, ...]) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(lines(RUN * 1.0001))
    assert watch_run(asked(run, bf16, once=True)) is ExitCode.INCONCLUSIVE
    run.write_text(lines(RUN * 1.02))
    assert watch_run(asked(run, bf16, once=True)) is ExitCode.FAIL
