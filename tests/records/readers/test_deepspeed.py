"""DeepSpeed's lines hold no loss, and the message says where to get one."""

from pathlib import Path

import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.readers import read_log
from fp8migrate.records.readers.base import Options
from fp8migrate.records.readers.deepspeed import READER
from tests.records.readers.logs import read
from tests.records.readers.reading import claimed_by, source

LINES = """[2024-01-02 03:04:05,678] [INFO] [Rank 0] step=10, skipped=0, lr=[0.001, 0.002], mom=[(0.9, 0.95)]
[2024-01-02 03:04:06,678] [INFO] [Rank 0] step=20, skipped=1, lr=[0.0005, 0.002], mom=[(0.9, 0.95)]
"""


def test_there_is_no_loss(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no loss(.|\n)*engine\(batch\)"):
        read(tmp_path, LINES)


def test_what_there_is(tmp_path: Path) -> None:
    column = READER.read(source(LINES), Options()).run.columns["lr"]
    assert (column.steps, column.values) == ([10, 20], [b"0.001", b"0.0005"])


def test_what_prints_a_loss_beside_it_is_read_by_that() -> None:
    assert claimed_by(LINES) == ("deepspeed", ["deepspeed"])
    assert read_log(source(LINES + "{'loss': 2.5, 'epoch': 0.5}\n"))[0].format == "hf-stdout"
