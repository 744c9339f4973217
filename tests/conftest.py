"""Shared fixtures: tiny random models, built once per session and only when asked for."""

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import torch
from transformers import PreTrainedModel

from tests.contract.covering import covering
from tests.families import FAMILIES

hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("tests")

FamilyModel = Callable[..., PreTrainedModel]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-pairs",
        action="store_true",
        help="Run every method on every family of models, not a covering choice of them.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``@pytest.mark.pairs(names, cases, by=...)``: by a choice of the cases, see `covering`."""
    for marker in metafunc.definition.iter_markers("pairs"):
        names, cases = marker.args
        chosen = (
            cases if metafunc.config.getoption("--all-pairs") else covering(cases, **marker.kwargs)
        )
        metafunc.parametrize(names, chosen)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests, with the reason, where there is no GPU."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, none is available")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def family_model() -> FamilyModel:
    """``family_model(name, attn_implementation=None)``: one model per pair, shared by all tests.

    Leave it as it was: other tests get the same object. Only families that remember earlier
    inputs are built anew for each call.
    """
    models: dict[tuple[str, str], PreTrainedModel] = {}

    def get(name: str, attn_implementation: str | None = None) -> PreTrainedModel:
        family = FAMILIES[name]
        implementation = attn_implementation or family.implementations[0]
        if family.stateful or (name, implementation) not in models:
            models[name, implementation] = family.build(implementation)
        return models[name, implementation]

    return get


@pytest.fixture(scope="session")
def llama(family_model: FamilyModel) -> PreTrainedModel:
    """The family that most tests of one model take; see `family_model`."""
    return family_model("llama")


@pytest.fixture(scope="session")
def short_questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of questions with short gold documents."""
    from tests.reader.questions import write_questions

    return write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl")


@pytest.fixture
def ships_short_questions(short_questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package came with these, and without an embedder."""
    from rag_middle.evaluation import tasks

    monkeypatch.setattr(tasks, "passages_path", lambda: short_questions)
