"""How many jobs at once, and where."""

import pytest

from fp8migrate.engine import slots as module
from fp8migrate.engine.slots import Slots, slots, visible_gpus
from fp8migrate.plan.schema import Launch


def test_cpu_jobs_fill_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    assert slots(Launch(threads_per_job=3), "cpu").count == 2
    assert slots(Launch(threads_per_job=16), "cpu").count == 1
    assert slots(Launch(threads_per_job=3, max_parallel=5), "cpu").count == 5
    assert slots(Launch(), "cpu").variables([]) == {}


@pytest.mark.parametrize(
    ("named", "gpus"),
    [("0,1, 3", ("0", "1", "3")), ("GPU-aa,GPU-bb", ("GPU-aa", "GPU-bb")), ("", ()), ("-1", ())],
)
def test_gpus_are_those_that_cuda_may_see(monkeypatch: pytest.MonkeyPatch, named: str, gpus: tuple[str, ...]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == gpus
    assert slots(Launch(), "cuda").count == max(1, len(gpus))


def test_each_job_gets_the_gpu_that_the_fewest_use() -> None:
    pool = Slots(4, ("2", "5"))
    assert pool.variables([]) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert pool.variables(["2"]) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert pool.variables(["2", "5", "5"]) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert Slots(1, ("2",)).variables([]) == {}
