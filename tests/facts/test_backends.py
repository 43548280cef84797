"""What runs where, against expectations worked out by hand from the sources that the table names."""

import pytest

from fp8migrate.facts.backends import SUPPORT, BackendName, Version, limit, recipes_of, refusal
from fp8migrate.facts.recipes import MIGRATION_RECIPES

ENGINE = ("delayed", "current", "block", "mxfp8", "nvfp4")
AO = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
EMULATED = ("delayed", "current", "block", "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "nvfp4", "fixed")

# Compute capability: what Transformer Engine runs, what torchao runs; CUDA 13.0.
RUNS: dict[Version | None, tuple[tuple[str, ...], tuple[str, ...]]] = {
    None: ((), ()),
    (7, 5): ((), ()),
    (8, 0): ((), ()),
    (8, 6): ((), ()),
    (8, 9): (("delayed", "current"), AO),
    (9, 0): (("delayed", "current", "block"), AO),
    (10, 0): (ENGINE, AO),
    (10, 3): (ENGINE, AO),
    (12, 0): (("delayed", "current", "block", "nvfp4"), AO),
}


def runs(backend: BackendName, capability: Version | None, cuda: Version = (13, 0)) -> tuple[str, ...]:
    return tuple(kind for kind in recipes_of(backend) if refusal(backend, kind, capability, cuda) is None)


@pytest.mark.parametrize("capability", RUNS, ids=str)
def test_what_runs_on_each_architecture(capability: Version | None) -> None:
    engine, ao = RUNS[capability]
    assert runs("transformer_engine", capability) == engine
    assert runs("torchao", capability) == ao
    assert runs("emulated", capability) == EMULATED


def test_every_recipe_that_one_would_train_with_can_be_emulated() -> None:
    assert {recipe.kind for recipe in MIGRATION_RECIPES} <= set(recipes_of("emulated"))
    assert all(support.source for support in SUPPORT)


def test_block_scaling_needs_cuda_12_9() -> None:
    assert runs("transformer_engine", (9, 0), (12, 8)) == ("delayed", "current")
    assert runs("transformer_engine", (9, 0), (12, 9)) == ("delayed", "current", "block")
    assert refusal("transformer_engine", "block", (9, 0), (12, 8)) == (
        "block on transformer_engine needs a torch built with CUDA 12.9 or newer, this one has 12.8: "
        "use delayed and current here, or say candidate.backend: emulated"
    )


def test_mxfp8_on_hopper() -> None:
    assert refusal("transformer_engine", "mxfp8", (9, 0), (13, 0)) == (
        "mxfp8 on transformer_engine needs compute capability 10.0 (Blackwell) or newer, this GPU has 9.0 (Hopper): "
        "use delayed, current and block here, or say candidate.backend: emulated"
    )


def test_mxfp8_ends_before_12() -> None:
    told = refusal("transformer_engine", "mxfp8", (12, 0))
    assert told is not None
    assert "does not run yet from compute capability 12.0 (RTX Blackwell) on" in told


def test_no_gpu_and_an_old_one() -> None:
    assert refusal("torchao", "rowwise", None) == (
        "rowwise on torchao needs a GPU of compute capability 8.9 (Ada) or newer, and there is none here: "
        "say candidate.backend: emulated"
    )
    assert refusal("torchao", "rowwise", (8, 0)) == (
        "rowwise on torchao needs compute capability 8.9 (Ada) or newer, this GPU has 8.0 (Ampere): "
        "say candidate.backend: emulated"
    )


def test_a_recipe_that_the_backend_has_not() -> None:
    assert refusal("transformer_engine", "rowwise", (9, 0)) == (
        "transformer_engine has no recipe rowwise: it has delayed, current, block, mxfp8 and nvfp4; "
        "rowwise is for candidate.backend: emulated or torchao"
    )
    assert refusal("emulated", "int8", (9, 0)) is not None


@pytest.mark.parametrize("backend", ["emulated", "transformer_engine", "torchao"])
def test_fp8_switched_off_runs_everywhere(backend: BackendName) -> None:
    assert refusal(backend, "bf16", None) is None


def test_nvfp4_on_12_runs_without_two_of_its_aids() -> None:
    assert limit("transformer_engine", "nvfp4", (10, 3)) is None
    told = limit("transformer_engine", "nvfp4", (12, 0))
    assert told is not None
    assert "disable_rht" in told
    assert limit("transformer_engine", "delayed", (12, 0)) is None
    assert limit("emulated", "nvfp4", None) is None
