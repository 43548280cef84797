"""Every message that a plan can be refused with, word for word, and what is read from one that is not."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fp8migrate.errors import ExitCode, PlanError
from fp8migrate.plan.load import LoadedPlan, load_plan
from fp8migrate.plan.template import starting_plan
from tests.plan.conftest import GOOD

KINDS = "delayed, current, block, tensorwise, rowwise, rowwise_with_gw_hp, mxfp8, nvfp4, fixed, bf16"

Refusal = Callable[[str | bytes], str]


def load(tmp_path: Path, text: str | bytes) -> LoadedPlan:
    path = tmp_path / "plan.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_plan(path)


# What is read


def test_a_plan_is_read_with_its_text_path_and_digest(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD)
    assert loaded.plan.name == "llama-small"
    assert loaded.plan.training.learning_rate == 1e-3
    assert loaded.plan.design.screen is not None
    assert loaded.plan.design.screen.fractions == (0.3, 0.6, 0.9)
    assert loaded.text == GOOD
    assert loaded.path == tmp_path / "plan.yaml"
    assert len(loaded.sha256) == 64


def test_a_path_may_be_text(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    assert load_plan(str(tmp_path / "plan.yaml")).plan.name == "llama-small"


def test_where_names_the_line_of_a_key_or_of_what_is_around_it(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD)
    file = tmp_path / "plan.yaml"
    assert loaded.where("training.num_steps") == f"{file}:4"
    assert loaded.where("candidate.recipe.amax_history_len") == f"{file}:11"
    assert loaded.where("training.seed") == f"{file}:3"
    assert loaded.where("launch.device") == f"{file}:1"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        "---\n" + GOOD + "...\n",
        "%YAML 1.2\n---\n" + GOOD,
        "# a comment\n\n" + GOOD,
        GOOD.rstrip("\n"),
        GOOD + "budget: null\nlaunch: ~\n",
        GOOD + "budget: {}\n",
    ],
    ids=["BOM", "CRLF", "document marks", "directive", "comment", "no last newline", "nulls", "empty mapping"],
)
def test_harmless_differences_are_harmless(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text).plan == load(tmp_path, GOOD).plan


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("6e-4", 6e-4),
        ("1E-3", 1e-3),
        ("1.5e-3", 1.5e-3),
        (".5", 0.5),
        ("1.", 1.0),
        ("+0.001", 0.001),
        ("1", 1.0),
        ("1e0", 1.0),
    ],
)
def test_numbers(tmp_path: Path, written: str, value: float) -> None:
    rate = load(tmp_path, GOOD.replace("1e-3", written)).plan.training.learning_rate
    assert rate == value
    assert type(rate) is float


def test_a_whole_number_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    num_steps = load(tmp_path, GOOD.replace("600", "1E5")).plan.training.num_steps
    assert num_steps == 100000
    assert type(num_steps) is int


@pytest.mark.parametrize("written", ["true", "True", "TRUE"])
def test_booleans(tmp_path: Path, written: str) -> None:
    assert load(tmp_path, GOOD + f"parity: {{require_fp8: {written}}}\n").plan.parity.require_fp8 is True


@pytest.mark.parametrize(
    "written", ["off", "on", "yes", "no", "y", "1:30", "010", "0x10", "0o17", "1_000", "2026-12-02", "nan", "inf", "1e", "--1"]
)
def test_everything_else_is_text(tmp_path: Path, refusal: Refusal, written: str) -> None:
    message = refusal(GOOD.replace("600", written))
    assert message == f'plan.yaml:4: training.num_steps: expected a whole number ≥ 1, got "{written}"'
    named = load(tmp_path, GOOD.replace("  recipe", f"  keep_bf16: [{written}]\n  recipe"))
    assert named.plan.candidate.keep_bf16 == (written,)


# Settings that are refused: one bad key in a good plan

BAD_KEYS = [
    ("num_steps: 600", "num_steps: eight", '4: training.num_steps: expected a whole number ≥ 1, got "eight"'),
    ("num_steps: 600", 'num_steps: "600"', '4: training.num_steps: expected a whole number ≥ 1, got "600"'),
    ("num_steps: 600", "num_steps: 600.0", "4: training.num_steps: expected a whole number ≥ 1, got 600.0"),
    ("num_steps: 600", "num_steps: 0", "4: training.num_steps: expected a whole number ≥ 1, got 0"),
    ("num_steps: 600", "num_steps: true", "4: training.num_steps: expected a whole number ≥ 1, got true"),
    ("num_steps: 600", "num_steps: [600]", "4: training.num_steps: expected a whole number ≥ 1, got a list"),
    ("num_steps: 600", "num_steps: {a: 1}", "4: training.num_steps: expected a whole number ≥ 1, got a mapping"),
    (
        "num_steps: 600",
        "num_steps:",
        "4: training.num_steps: no value; write null to leave the key out, {} for a mapping with its defaults",
    ),
    (
        "num_steps: 600",
        "num_steps: null",
        "4: training.num_steps: missing key; expected a whole number ≥ 1 (optimizer steps of the whole schedule)",
    ),
    ("learning_rate: 1e-3", "learning_rate: -1e-3", "8: training.learning_rate: expected a number > 0, got -1e-3"),
    (
        "learning_rate: 1e-3",
        "learning_rate: .nan",
        "8: training.learning_rate: .nan is refused: expected a finite number",
    ),
    (
        "learning_rate: 1e-3",
        "learning_rate: -.INF",
        "8: training.learning_rate: -.INF is refused: expected a finite number",
    ),
    ("learning_rate: 1e-3", "learning_rate: 1e999", "8: training.learning_rate: 1e999 is too large"),
    ("num_steps: 600", "num_steps: 99999999999999999999", "4: training.num_steps: 99999999999999999999 is too large"),
    (
        "{num_steps: 60}",
        "{num_step: 60}",
        "13: design.screen.num_step: unknown key; did you mean num_steps? allowed: fractions, num_steps, data_orders",
    ),
    (
        "{num_steps: 60}",
        "{zzz: 60}",
        "13: design.screen.zzz: unknown key; allowed: fractions, num_steps, data_orders",
    ),
    (
        "{num_steps: 60}",
        "{num_steps: 60, fractions: [0.3, 1.5]}",
        "13: design.screen.fractions[1]: expected a number > 0 and < 1, got 1.5",
    ),
    (
        "{num_steps: 60}",
        "{num_steps: 60, fractions: []}",
        "13: design.screen.fractions: expected a list of at least 1, each item a number > 0 and < 1, got an empty list",
    ),
    (
        "{num_steps: 60}",
        "{num_steps: 60, fractions: 0.3}",
        "13: design.screen.fractions: expected a list of at least 1, each item a number > 0 and < 1, got 0.3",
    ),
    (
        "{num_steps: 60}",
        "{num_steps: 60, fractions: [0.6, 0.3]}",
        "13: design.screen.fractions: must rise, each named once",
    ),
    (
        "{num_steps: 60}",
        "{num_steps: 60, data_orders: 65}",
        "13: design.screen.data_orders: expected a whole number from 2 to 64, got 65",
    ),
    (
        "{num_steps: 60}",
        "[60]",
        "13: design.screen: expected a mapping with the keys fractions, num_steps, data_orders, got a list",
    ),
    (
        "{kind: delayed, amax",
        "{kind: dlayed, amax",
        "11: candidate.recipe.kind: expected one of " + KINDS + ', got "dlayed"; did you mean delayed?',
    ),
    (
        "{kind: delayed, amax",
        "{kind: 3, amax",
        "11: candidate.recipe.kind: expected one of " + KINDS + ", got 3",
    ),
    (
        "{kind: delayed, amax",
        "{amax",
        "11: candidate.recipe.kind: missing key; expected one of " + KINDS,
    ),
    (
        "{kind: delayed, amax_history_len: 16}",
        "delayed",
        "11: candidate.recipe: expected a mapping with a kind: " + KINDS + ', got "delayed"',
    ),
    (
        "{kind: delayed, amax_history_len: 16}",
        "{kind: current, amax_history_len: 16}",
        "11: candidate.recipe.amax_history_len: unknown key; "
        "allowed: kind, format, use_power_2_scales, backward_split_accumulator",
    ),
    (
        "{kind: delayed, amax_history_len: 16}",
        "{kind: delayed, amax_history_len: 16, delayed: 3}",
        "11: candidate.recipe.delayed: unknown key; allowed: kind, format, amax_history_len, amax_compute, margin, "
        "backward_split_accumulator",
    ),
    (
        "{kind: delayed, amax_history_len: 16}",
        "{kind: delayed, amax_history_len: 16, format: Hybird}",
        '11: candidate.recipe.format: expected one of hybrid, e4m3, got "Hybird"; did you mean hybrid?',
    ),
    ("kind: llama,", "kind: lama,", '2: model.kind: expected llama, got "lama"; did you mean llama?'),
    (
        "name: llama-small",
        "name: a b",
        "1: name: expected 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit, got \"a b\"",
    ),
    (
        "name: llama-small",
        "nane: llama-small",
        "1: name: missing key; expected 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit "
        "(reports go to reports/<name>/)\n"
        "plan.yaml:1: nane: unknown key; did you mean name? allowed: name, trainer, model, data, training, candidate, design, "
        "parity, budget, phases, launch",
    ),
    (
        "global_batch_size: 8",
        "global_batch_size: 9",
        "7: training.global_batch_size: 9 is not a multiple of micro_batch_size 4",
    ),
    ("warmup_steps: 40", "warmup_steps: 600", "9: training.warmup_steps: 600 must be below num_steps 600"),
    (
        "num_heads: 4,",
        "num_heads: 5,",
        "2: model.hidden_size: 64 is not a multiple of num_heads 5\n"
        "plan.yaml:2: model.num_kv_heads: num_heads 5 is not a multiple of num_kv_heads 2",
    ),
    (
        "num_heads: 4,",
        "num_heads: 64,",
        "2: model.hidden_size: hidden_size / num_heads = 1 is odd; rotary positions need an even head size",
    ),
    (
        "{num_steps: 60}",
        "{num_steps: 59}",
        "13: design.screen.num_steps: 59 is too short for this recipe and optimizer: it needs 60 "
        "(the larger of 2 x amax_history_len and 3 / (1 - beta2))",
    ),
    (
        "  screen: {num_steps: 60}",
        "  branch: {at: 0.95}",
        "13: design.branch.at: 0.95 leaves 30 steps, which is too short for this recipe and optimizer: it needs 60 "
        "(the larger of 2 x amax_history_len and 3 / (1 - beta2))",
    ),
    (
        "  screen: {num_steps: 60}",
        "  floor_pairs: 4",
        "12: design: a design needs at least one of screen, branch, scratch",
    ),
    (
        "  screen: {num_steps: 60}",
        "  branch: {}\n  scratch: {}",
        "14: design.scratch: branch and scratch exclude each other: choose one",
    ),
    (
        "{kind: delayed, amax_history_len: 16}",
        "{kind: bf16}",
        "11: candidate.recipe: bf16 is an A/A test: say parity.require_fp8: false, or choose an FP8 recipe",
    ),
    # The file as text
    ("  num_steps: 600", "\tnum_steps: 600", "4: a tab: indent with spaces"),
    (
        "num_steps: 600",
        "num_steps: 600: 7",
        "4: an unexpected ':'; check the indentation, or quote a value that holds ': '",
    ),
    ("  num_steps: 600", "    num_steps: 600", "5: does not line up with the lines above it: check the indentation"),
    ("{num_steps: 60}", "{num_steps: 60", "13: a '[' or '{' that is not closed, or a missing ','"),
    ("name: llama-small", "name: 'llama-small", "1: a quote that is not closed"),
    ("name: llama-small", "name", "2: an unexpected ':'; check the indentation, or quote a value that holds ': '"),
    ("design:", "design\n\nx:", "12: a key without ':' after it"),
    ("name: llama-small", "name: @small", "1: a character that cannot begin a value: put the value in quotes"),
    (
        "  recipe",
        "  keep_bf16: [*.mlp.down]\n  recipe",
        "11: '*' and '&' have a meaning in YAML: put the value in quotes",
    ),
    ("num_steps: 600", "num_steps: ]", "4: a value is missing, or something stands there that begins none"),
    ("num_steps: 600", "num_steps: - 600", "4: an unexpected '- ': check the indentation"),
    ("num_steps: 600", "num_steps: > 600", "4: text behind '|' or '>': put the value in quotes"),
    ("name: llama-small", "{a: 1}\nname: x", "2: text that belongs to no key: check the indentation"),
    ("name: llama-small", 'name: "\\q"', "1: an unknown escape in a quoted text: use single quotes"),
    ("name: llama-small", 'name: "\\UFFFFFFFF"', "1: a number in a directive or an escape that is out of range"),
    ("name: llama-small", "name: a\x07", "1: a character that text cannot hold (U+0007)"),
    ("name: llama-small", 'name: "a\\x9bb"', "1: name: a control or unprintable character in 'a\\x9bb'"),
    ("  screen", '  "\\ud800": 1\n  screen', "13: design.?: a control or unprintable character in '\\ud800'"),
    ("name: llama-small", "name: !foo!bar x", "1: tags (!) are refused: a plan is plain data"),
    (
        "name: llama-small",
        "name: !!python/object/apply:os.system [ls]",
        "1: name: the tag !!python/object/apply:os.system is refused: a plan is plain data and never builds objects",
    ),
    ("name: llama-small", "name: !!str x", "1: name: the tag !!str is refused: a plan is plain data and never builds objects"),
    ("name: llama-small", "name: !x y", "1: name: the tag !x is refused: a plan is plain data and never builds objects"),
    (
        "name: llama-small",
        "name: &a llama-small",
        "1: name: anchors (&a) are refused: write the value out where it is used",
    ),
    ("name: llama-small", "name: *a", "1: name: aliases (*a) are refused: write the value out, or quote a text with *"),
    ("{num_steps: 60}", "{num_steps: 60, <<: {}}", "13: design.screen.<<: merge keys (<<) are refused: write the keys out"),
    (
        "num_steps: 600",
        "num_steps: 600\n  num_steps: 700",
        "5: training.num_steps: repeated key; it stands on line 4 already",
    ),
    ("name: llama-small", "? [a, b]\n: 1\nname: llama-small", "1: ?: a key that is not a word"),
    ("name: llama-small", "name: llama-small\n---", "2: a second document (---): a plan is one document"),
]


@pytest.mark.parametrize(("good", "bad", "message"), BAD_KEYS)
def test_messages(refusal: Refusal, good: str, bad: str, message: str) -> None:
    assert good in GOOD
    assert refusal(GOOD.replace(good, bad, 1)) == f"plan.yaml:{message}"


def test_every_problem_is_listed_in_the_order_of_the_file(refusal: Refusal) -> None:
    text = GOOD.replace("600", "eight").replace("warmup_steps: 40", "warmup_steps: 40\n  warmup_steps: 41")
    text = text.replace("  learning_rate: 1e-3\n", "").replace("{num_steps: 60}", "{num_step: 60, fractions: [2]}")
    text += "parity: {margin: standrad, require_fp8: yes}\nbudget: !!map {}\ncandiate: 3\n"
    assert refusal(text).splitlines() == [
        "plan.yaml:3: training.learning_rate: missing key; expected a number > 0 "
        "(AdamW's peak rate, reached after the warm-up)",
        'plan.yaml:4: training.num_steps: expected a whole number ≥ 1, got "eight"',
        "plan.yaml:9: training.warmup_steps: repeated key; it stands on line 8 already",
        "plan.yaml:13: design.screen.fractions[0]: expected a number > 0 and < 1, got 2",
        "plan.yaml:13: design.screen.num_step: unknown key; did you mean num_steps? allowed: fractions, num_steps, data_orders",
        'plan.yaml:14: parity.margin: expected one of standard, strict, fp4 or a number > 0 and < 0.5, got "standrad"; '
        "did you mean standard?",
        'plan.yaml:14: parity.require_fp8: expected true or false, got "yes"',
        "plan.yaml:15: budget: the tag !!map is refused: a plan is plain data and never builds objects",
        "plan.yaml:16: candiate: unknown key; did you mean candidate? allowed: name, trainer, model, data, training, "
        "candidate, design, parity, budget, phases, launch",
    ]


def test_two_settings_that_do_not_go_together_are_both_named(refusal: Refusal) -> None:
    text = GOOD.replace("global_batch_size: 8", "global_batch_size: 9").replace("warmup_steps: 40", "warmup_steps: 600")
    assert refusal(text.replace("{kind: delayed, amax_history_len: 16}", "{kind: bf16}")).splitlines() == [
        "plan.yaml:7: training.global_batch_size: 9 is not a multiple of micro_batch_size 4",
        "plan.yaml:9: training.warmup_steps: 600 must be below num_steps 600",
    ]
    text = GOOD.replace("{kind: delayed, amax_history_len: 16}", "{kind: bf16}").replace("60}", "6}")
    assert refusal(text).splitlines() == [
        "plan.yaml:11: candidate.recipe: bf16 is an A/A test: say parity.require_fp8: false, or choose an FP8 recipe",
        "plan.yaml:13: design.screen.num_steps: 6 is too short for this recipe and optimizer: it needs 60 "
        "(the larger of 2 x amax_history_len and 3 / (1 - beta2))",
    ]


def test_a_setting_that_the_file_leaves_out_is_placed_at_the_mapping_around_it(refusal: Refusal) -> None:
    # amax_history_len is 1024 where it is absent.
    message = refusal(GOOD.replace("amax_history_len: 16", "margin: 0").replace("{num_steps: 60}", "{}"))
    assert message == (
        "plan.yaml:13: design.screen.num_steps: 150 is too short for this recipe and optimizer: it needs 2048 "
        "(the larger of 2 x amax_history_len and 3 / (1 - beta2))"
    )


def test_messages_are_free_of_the_libraries_words(refusal: Refusal) -> None:
    for good, bad, _ in BAD_KEYS:
        message = refusal(GOOD.replace(good, bad, 1)).lower()
        assert not any(word in message for word in ("pydantic", "http", "input", "valid ", "token", "<class"))


def test_values_from_the_file_are_shortened_and_cannot_drive_a_terminal(refusal: Refusal) -> None:
    assert refusal(GOOD.replace("600", "x" * 500)) == (
        f'plan.yaml:4: training.num_steps: expected a whole number ≥ 1, got "{"x" * 59}…"'
    )
    assert "\x1b" not in refusal(GOOD + '"\\e[31m": 1\n')
    assert "\u202e" not in refusal(GOOD + '"\u202ename": 1\n')


# The file as a whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "plan.yaml: this plan is empty\n`fp8migrate init` writes a plan to start from."),
        ("\ufeff", "plan.yaml: this plan is empty\n`fp8migrate init` writes a plan to start from."),
        (
            "# only\n# comments\n",
            "plan.yaml: this plan holds no keys, only comments\n`fp8migrate init` writes a plan to start from.",
        ),
        ("---\n", "plan.yaml: this plan holds no keys, only comments\n`fp8migrate init` writes a plan to start from."),
        ("- a\n- b\n", "plan.yaml:1: expected a mapping of keys (name, model, training, …), got a list"),
        ("\nhello\n", "plan.yaml:2: expected a mapping of keys (name, model, training, …), got a single value"),
        (
            "!!python/object:os.x {}",
            "plan.yaml:1: the tag !!python/object:os.x is refused: a plan is plain data and never builds objects",
        ),
        (
            b"name: a\n\x00\x01",
            "plan.yaml:2: a NUL byte: this is a binary file, not a plan\nA plan is YAML text in UTF-8: save it so.",
        ),
        (
            b"name: a\n# caf\xe9\n",
            "plan.yaml:2: byte 0xe9 is not UTF-8\nA plan is YAML text in UTF-8: save it so.",
        ),
        (
            GOOD.encode("utf-16"),
            "plan.yaml: this file is UTF-16, not UTF-8\nA plan is YAML text in UTF-8: save it so.",
        ),
        (
            b"#" * (1 << 20) + b"\n",
            "plan.yaml: larger than 1024 KiB: this is no plan\nName the plan, not its data or a log.",
        ),
        ("a: " + "[" * 5000, "plan.yaml:1: nested deeper than 20 levels"),
        ("- " * 5000, "plan.yaml:1: nested deeper than 20 levels"),
        ("".join(f"{' ' * i}a:\n" for i in range(1000)), "plan.yaml:22: nested deeper than 20 levels"),
        ("a: [" + "1, " * 20_000 + "]", "plan.yaml:1: more than 20000 values: this is no plan"),
    ],
)
def test_files_that_are_no_plans(refusal: Refusal, content: str | bytes, message: str) -> None:
    assert refusal(content) == message


def test_a_billion_laughs_are_refused_at_the_first(refusal: Refusal) -> None:
    lines = ["a: &a [lol, lol]"] + [f"{b}: &{b} [*{a}, *{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    message = refusal("\n".join(lines)).splitlines()
    assert message[0] == "plan.yaml:1: a: anchors (&a) are refused: write the value out where it is used"
    assert "plan.yaml:2: b[0]: aliases (*a) are refused: write the value out, or quote a text with *" in message


def test_two_unusable_keys_are_not_called_a_repetition(refusal: Refusal) -> None:
    message = refusal("[a]: 1\n[b]: 2\n")
    assert message.count("a key that is not a word") == 2
    assert "repeated" not in message


def test_reading_stops_after_a_hundred_problems(refusal: Refusal) -> None:
    message = refusal("a: 1\n" * 5000).splitlines()
    assert message[-1] == "plan.yaml:101: reading stops here, after 100 problems"
    assert len(message) == 101


def test_a_missing_file_suggests_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "llama.yaml").write_text(GOOD)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "lama.yaml")
    assert str(caught.value) == f"{tmp_path}/lama.yaml: no such file\nDid you mean {tmp_path}/llama.yaml?"
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "zzz")
    assert str(caught.value) == f"{tmp_path}/zzz: no such file\nYAML files in {tmp_path}: llama.yaml."


def test_a_missing_file_in_a_folder_without_plans(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "a.yaml")
    assert str(caught.value) == f"{tmp_path}/a.yaml: no such file\n`fp8migrate init` writes a plan to start from."


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "no" / "a.yaml")
    assert str(caught.value) == f"{tmp_path}/no/a.yaml: no such file\nThere is no folder {tmp_path}/no either."


def test_a_folder_names_the_plans_in_it(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.yaml").write_text(GOOD)
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: this is a folder, not a plan\nYAML files in {tmp_path}: 0.yaml, 1.yaml, 2.yaml, 3.yaml, 4.yaml, …."
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "pipe")
    assert str(caught.value) == f"{tmp_path}/pipe: this is not a regular file\nSave the plan as a file and name that."


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.yaml").write_text(GOOD)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "plan.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/plan.yaml: cannot be read: Permission denied\nCheck the path and its permissions."
    )


def test_a_path_that_no_system_takes() -> None:
    with pytest.raises(PlanError) as caught:
        load_plan("a\0b")
    assert str(caught.value) == "a\\x00b: cannot be read: embedded null byte\nCheck the path and its permissions."


# Any text at all


def outcome(path: Path, content: bytes) -> LoadedPlan | PlanError:
    path.write_bytes(content)
    try:
        return load_plan(path)
    except PlanError as error:
        return error


KEYS = st.sampled_from(
    ["name", "model", "training", "candidate", "design", "parity", "kind", "num_steps", "recipe", "screen", "fractions", "<<"]
)
SCALARS = st.sampled_from(
    ["1", "1e-4", "delayed", "off", "null", "", "'a", "[", "{}", "- x", "!!x", "&a", "*a", "\t", "010", "true"]
)
LINES = st.builds(lambda indent, key, value: f"{' ' * indent}{key}: {value}", st.sampled_from([0, 2, 4, 6]), KEYS, SCALARS)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.lists(LINES, max_size=12).map("\n".join), st.text(alphabet="{}[]:,-?!&*|>'\"%@`# \n\ta1.e\\u")))
@example("%YAML " + "1" * 5000 + ".1\n---\na: 1")
@example("? ? ?\n: :")
@example("a: |\n  b\n c")
@example("[a: b, {c}]: d")
def test_any_text_gives_a_plan_or_a_plan_error(tmp_path: Path, text: str) -> None:
    result = outcome(tmp_path / "plan.yaml", text.encode("utf-8", "surrogatepass"))
    assert isinstance(result, PlanError)
    assert result.exit_code == ExitCode.USAGE
    assert str(tmp_path / "plan.yaml") in str(result)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.integers(0, len(GOOD)), st.integers(0, 40))
def test_any_damage_to_a_good_plan_gives_a_plan_or_a_plan_error(tmp_path: Path, noise: bytes, at: int, cut: int) -> None:
    content = GOOD.encode()
    result = outcome(tmp_path / "plan.yaml", content[:at] + noise + content[at + cut :])
    assert isinstance(result, LoadedPlan | PlanError)


def test_an_a_a_test_cannot_be_served_in_fp8(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(starting_plan("aa").replace("kind: delayed", "kind: bf16", 1).replace("serve: bf16", "serve: fp8"))
    lines = [
        line
        for line in path.read_text().splitlines()
        if not re.match(r" +(amax_|margin: 0|backward_split|format: hybrid)", line)
    ]
    path.write_text("\n".join(lines).replace("require_fp8: true", "require_fp8: false"))
    with pytest.raises(PlanError, match=r"parity.serve: fp8 cannot be judged in an A/A test"):
        load_plan(path)


def test_advice_that_nobody_gives_is_refused(refusal: Refusal) -> None:
    text = GOOD.replace("  recipe", "  keep_advised: true\n  recipe") + "phases: {baseline: {advisor: {samples: 0}}}\n"
    assert "candidate.keep_advised: needs the advisor: say phases.baseline.advisor.samples" in refusal(text)
