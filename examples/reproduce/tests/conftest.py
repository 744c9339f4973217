"""The tiny models of the package's own tests."""

from tests.conftest import family_model
from tests.evaluation.conftest import model

__all__ = ["family_model", "model"]
