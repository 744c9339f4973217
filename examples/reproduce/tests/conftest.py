"""The tiny model of the package's own evaluation tests."""

from tests.evaluation.conftest import model

__all__ = ["model"]
