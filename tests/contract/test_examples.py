"""The table of examples covers every method there is."""

import pytest

from rag_middle.methods import METHODS
from tests.contract.cases import ACTIVE, AROUND, EXAMPLES, LONG
from tests.contract.covering import group_of
from tests.contract.test_order_invariance import ORDER_FREE

OURS = [name for name, kind in METHODS.items() if kind.__module__.startswith("rag_middle.")]


def test_every_registered_method_has_an_entry() -> None:
    missing = sorted(set(OURS) - set(EXAMPLES))
    assert not missing, f"add neutral and active parameters of {missing} to tests/contract/cases.py"


@pytest.mark.parametrize("name", EXAMPLES)
def test_methods_know_which_of_their_parameters_are_neutral(name: str) -> None:
    example = EXAMPLES[name]
    # Some have no neutral parameters: they are neutral for prompts with one document.
    assert example.neutral.is_neutral == (example.neutral_prompt is LONG)
    methods = [*example.active.values(), *example.around.values()]
    assert not any(method.is_neutral for method in methods)


def test_every_method_of_the_tables_is_in_a_group() -> None:
    for name in (*EXAMPLES, *ACTIVE, *AROUND, *ORDER_FREE):
        assert group_of(name), f"say in covering.py which methods {name} shares its code with"
    assert group_of("sdpa") is None
