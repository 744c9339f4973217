"""No unit test reaches a network."""

from collections.abc import Iterator

import pytest
import pytest_socket


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    pytest_socket.disable_socket(allow_unix_socket=True)  # event loops use a pair of those
    yield
    pytest_socket.enable_socket()
