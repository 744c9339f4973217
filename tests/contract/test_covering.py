"""The choice of pairs that the suite runs by default leaves out repetitions and nothing else."""

from tests.contract.cases import PAIRS
from tests.contract.covering import combination_of, covering, group_of

CHOSEN = covering(PAIRS)


def test_every_method_meets_every_trait_and_both_implementations() -> None:
    met, possible = (
        {(method, trait) for family, method, _ in cases for trait in combination_of(family)}
        for cases in (CHOSEN, PAIRS)
    )
    assert met == possible
    assert ("siw", ("sliding_layers", True)) in met
    assert {case[1:] for case in CHOSEN} == {case[1:] for case in PAIRS}


def test_every_group_of_methods_meets_every_combination_of_traits() -> None:
    met, possible = (
        {(group_of(method), combination_of(family)) for family, method, _ in cases}
        for cases in (CHOSEN, PAIRS)
    )
    assert met == possible
    assert combination_of("phi3") != combination_of("gpt_neox") != combination_of("llama")
    assert combination_of("qwen2") == combination_of("llama")
