"""The table of variables: each once, each with its source, each told or left alone as it should be."""

from fp8migrate.facts.variables import PREFIXES, VARIABLES, find_variable, is_told


def test_each_once_with_a_source_and_under_a_prefix() -> None:
    names = [variable.name for variable in VARIABLES]
    assert len(set(names)) == len(names)
    assert all(variable.source and variable.changes for variable in VARIABLES)
    assert all(name.startswith(PREFIXES) for name in names)


def test_what_is_told() -> None:
    assert is_told("NVTE_ALLOW_NONDETERMINISTIC_ALGO")
    assert is_told("NVTE_OF_TOMORROW")
    assert find_variable("NVTE_OF_TOMORROW") is None
    assert not is_told("CUDA_VISIBLE_DEVICES")
    assert not is_told("PATH")
