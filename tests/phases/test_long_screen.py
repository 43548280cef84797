"""The screen's runs of 4K: asked for after the screens convicted nothing, and only where they are the last word."""

from typing import Any

import pytest

from fp8migrate.jobs import Job, Train
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.phases.small_scale import SmallScale
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Record
from fp8migrate.verdict import decide
from tests.simulation import Scenario, environment, make_plan, make_records

SOUND = Scenario(tau=0.0002)


def screens(**designs: Any) -> Plan:
    plan = make_plan("screen", screen_steps=60, num_steps=300)
    return plan.model_copy(update={"design": plan.design.model_validate({**plan.design.model_dump(), **designs})})


def train(job: Job) -> Train:
    assert isinstance(job.task, Train)
    return job.task


def carried_out(plan: Plan, scenario: Scenario = SOUND) -> tuple[list[tuple[Job, ...]], Done]:
    """The batches that the phase asks for, one after the other, and what it ends with."""
    records: dict[str, Record] = {}
    batches: list[tuple[Job, ...]] = []
    while True:
        answer = SmallScale().next(plan, Findings(environment(), dict(records)))
        if isinstance(answer, Done):
            return batches, answer
        assert isinstance(answer, Jobs)
        new = tuple(job for job in answer.jobs if job.digest not in records)
        assert new
        batches.append(new)
        records |= make_records(new, scenario)


def test_a_second_batch_runs_one_fraction_over_4k() -> None:
    (first, second), done = carried_out(screens())
    assert {job.role.design for job in first} == {"baseline", "screen"}
    assert {(job.role.design, job.role.arm, job.role.fraction) for job in second} == {
        ("long_screen", "baseline", 0.6),
        ("long_screen", "candidate", 0.6),
    }
    assert len(second) == 8
    assert [comparison.design for comparison in done.comparisons] == ["screen", "long_screen"]
    assert decide(done.results).name == "SCREENED"


def test_each_long_run_is_its_short_one_over_four_times_the_steps() -> None:
    """Same start, weights, data order and recipe; the learning rate reaches zero after 4 × 60 steps from step 180."""
    (first, second), _ = carried_out(screens())
    short = {(job.role.arm, job.role.pair): job for job in first if job.role.fraction == 0.6}
    for job in second:
        task, other = train(job), train(short[job.role.arm, job.role.pair])
        assert job.start == short[job.role.arm, job.role.pair].start
        assert task.cooldown is not None
        assert (task.first_step, task.last_step) == (180, 420)
        assert (task.cooldown.start, task.cooldown.num_steps) == (180, 240)
        assert task.validate_at == (240, 300, 420)
        changed = {"last_step", "cooldown", "validate_at"}
        assert task.model_dump(exclude=changed) == other.model_dump(exclude=changed)
        assert job.label == f"small_scale-long_screen-0.60-p{job.role.pair}-{job.role.arm}"


def test_screens_that_convict_are_not_followed() -> None:
    batches, done = carried_out(screens(), Scenario(gap=0.01, tau=0.0002))
    assert len(batches) == 1
    assert [comparison.design for comparison in done.comparisons] == ["screen"]
    assert decide(done.results).code == "GAP"


@pytest.mark.parametrize("designs", [{"branch": {"pairs": 4}}, {"scratch": {"pairs": 4}}])
def test_longer_pairs_take_the_place_of_4k(designs: dict[str, Any]) -> None:
    plan = screens(**designs)
    batches, done = carried_out(plan)
    assert [comparison.design for comparison in done.comparisons] == ["screen", next(iter(designs))]
    planned = SmallScale().planned(plan, Findings(environment()))
    assert not any(job.role.design == "long_screen" for job in (*planned, *(job for batch in batches for job in batch)))
    assert decide(done.results).name == "PASS"


def test_growth_over_4k_leaves_the_screen_inconclusive() -> None:
    _, done = carried_out(screens(), Scenario(tau=0.0002, long_gap=0.002))
    found = decide(done.results)
    assert (found.name, found.code) == ("INCONCLUSIVE", "WIDENING")


def test_the_plan_lists_them_from_the_start() -> None:
    plan = screens()
    batches, _ = carried_out(plan)
    planned = SmallScale().planned(plan, Findings(environment()))
    assert [job.digest for job in planned] == [job.digest for batch in batches for job in batch]
