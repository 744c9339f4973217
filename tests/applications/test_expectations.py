"""The tests that stand behind the tables of peers' expectations exist."""

from __future__ import annotations

import re

import pytest
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from tests.applications import expectations
from tests.applications.expectations import ROOT, Expectation

FOLDERS = {
    "integrations/langchain/tests": expectations.LANGCHAIN,
    "integrations/llama_index/tests": expectations.LLAMA_INDEX,
}
TESTED = [
    (folder, expectation)
    for folder, declared in FOLDERS.items()
    for expectation in declared
    if expectation.test
]


@pytest.mark.parametrize(
    ("folder", "expectation"), TESTED, ids=[expectation.expects[:40] for _, expectation in TESTED]
)
def test_an_expectation_has_a_test(folder: str, expectation: Expectation) -> None:
    file, _, function = str(expectation.test).partition("::")
    text = (ROOT / folder / file).read_text(encoding="utf-8")
    assert re.search(rf"def {function}\(", text), f"{file} has no {function}"


def test_what_has_no_test_is_no_matter_of_code() -> None:
    untested = [e for declared in FOLDERS.values() for e in declared if e.test is None]
    assert all(expectation.differs for expectation in untested)


def test_skipped_standard_tests_are_such() -> None:
    for name in expectations.skipped_standard_tests():
        assert hasattr(ChatModelIntegrationTests, name) or hasattr(ChatModelUnitTests, name)
