"""What all tests share, those of the integrations and examples included."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``@pytest.mark.one_in(n)``: all but every n-th case of a test are slow."""
    cases = Counter[str]()
    for item in items:
        if marker := item.get_closest_marker("one_in"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
