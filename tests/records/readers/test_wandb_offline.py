"""Offline files of W&B: records across blocks, a run that was killed, and what is said without the package."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.readers import read_log, reader_of
from fp8migrate.records.readers.wandb_offline import _records
from fp8migrate.records.source import Source

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 32768


def framed(records: list[bytes]) -> bytes:
    """Records as LevelDB writes them: parts end with a block, and no header crosses one."""
    content = bytearray(HEADER)
    for record in records:
        first = True
        while True:
            left = BLOCK - len(content) % BLOCK
            if left < 7:
                content += b"\0" * left
                continue
            part, record = record[: left - 7], record[left - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            content += b"crc!" + len(part).to_bytes(2, "little") + bytes([kind]) + part
            first = False
            if not record:
                break
    return bytes(content)


def messages() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("wandb", reason="wandb is not installed")
        from wandb.proto import wandb_internal_pb2
    return wandb_internal_pb2


def history(step: int, **values: str) -> bytes:
    record = messages().Record()
    record.history.step.num = step
    for key, value in values.items():
        record.history.item.add(nested_key=key.split("__"), value_json=value)
    return bytes(record.SerializeToString())


@pytest.mark.parametrize("sizes", [[1, 2, 3], [32754, 5], [32750, 5], [32755, 0, 9], [100_000, 7], [0]])
def test_records_across_blocks(sizes: list[int]) -> None:
    records = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    assert list(_records(framed(records))) == records


def test_a_record_that_was_cut_is_left_out() -> None:
    content = framed([b"one", b"two" * 20_000])
    assert all(list(_records(content[:end])) == [b"one"] for end in (20, 40_000, len(content) - 1))


def test_points_settings_and_failure(tmp_path: Path) -> None:
    start, end = messages().Record(), messages().Record()
    start.run.display_name = "quiet-hill-7"
    start.run.config.update.add(key="lr", value_json="0.001")
    end.exit.exit_code = 3
    rows = [history(1, train__loss="5.5", mood="1"), history(2, train__loss="NaN", val_loss="5.25", _step="2")]
    content = framed([start.SerializeToString(), *rows, end.SerializeToString()])
    (run,) = read_log(Source("run.wandb", None, content))
    assert (run.name, run.format, run.settings) == ("quiet-hill-7", "wandb-offline", {"lr": "0.001"})
    assert run.series["training_loss"].steps.tolist() == [1, 2]
    assert run.series["training_loss"].values[0] == 5.5
    assert np.isnan(run.series["training_loss"].values[1])
    assert run.series["validation_loss"].values.tolist() == [5.25]
    assert run.failure == "the program ended with code 3"
    assert run.unused == ("mood",)


def test_records_that_are_no_message_are_counted() -> None:
    (run,) = read_log(Source("run.wandb", None, framed([b"\xff\xff\xff", history(1, loss="5.5")])))
    assert run.not_understood == 1


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    source = Source("run.wandb", None, HEADER)
    assert reader_of(source).name == "wandb-offline"
    with pytest.raises(UsageError, match=r"pip install 'fp8migrate\[logs\]'"):
        read_log(source)
