"""`fp8migrate doctor` as a user gives it, on this machine's CPU."""

import json

from fp8migrate.evidence.diagnosis import Diagnosis
from tests.cli.conftest import Command


def test_one_document_with_everything(fp8migrate: Command) -> None:
    looked = fp8migrate("doctor", "--device", "cpu", "--json", NVTE_FLASH_ATTN="0")
    assert (looked.returncode, looked.stderr) == (0, "")
    assert json.loads(looked.stdout)["schema_version"] == 1
    found = Diagnosis.model_validate_json(looked.stdout)
    assert (found.can_train, found.machine.gpus) == (True, ())
    assert [each.name for each in found.variables if each.name == "NVTE_FLASH_ATTN"]
    assert all(each.runs for each in found.answers if each.backend == "emulated")
