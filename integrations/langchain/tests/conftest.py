"""The tiny model with templates of its own, and documents."""

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

os.environ.pop("LANGSMITH_TRACING", None)

import pytest
from langchain_core.documents import Document
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import RagMiddleModel
from tests.tokenizers import CHATML, HERMES

#: Standard tests of LangChain that may be skipped: models read text only, are not read back from
#: descriptions, need no key, and keep their weights from call to call.
SKIPPED = frozenset(
    """
    test_init_from_env test_serdes test_stream_time test_anthropic_inputs test_pdf_inputs
    test_audio_inputs test_image_inputs test_image_tool_message test_pdf_tool_message
    test_invoke_with_model_override test_ainvoke_with_model_override
    test_stream_with_model_override test_astream_with_model_override
    """.split()
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Fail where another standard test is skipped."""
    report: pytest.TestReport = yield
    name = getattr(item, "originalname", "")
    standard = ("test_standard.py::TestToolsAndStructuredOutput", "unit_tests/test_standard.py::")
    if report.skipped and any(tests in item.nodeid for tests in standard) and name not in SKIPPED:
        report.outcome = "failed"
        report.longrepr = f"{name} was skipped, which SKIPPED does not name: {report.longrepr}"
    return report


MakeModel = Callable[..., RagMiddleModel]


@pytest.fixture
def make_model(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> MakeModel:
    """``make_model(chat_template=, **arguments of RagMiddleModel)``."""

    def make(chat_template: str = CHATML, **given: Any) -> RagMiddleModel:
        own = deepcopy(tokenizer)
        own.chat_template = chat_template
        return RagMiddleModel(network, own, **given)

    return make


@pytest.fixture
def tiny(make_model: MakeModel) -> RagMiddleModel:
    return make_model()


@pytest.fixture
def local(network: PreTrainedModel, make_model: MakeModel) -> Iterator[RagMiddleModel]:
    """Its template shows tools, and `tests.scripted` may say what it writes."""
    yield make_model(HERMES)
    network._forward_pre_hooks.clear()
    network.lm_head._forward_hooks.clear()


@pytest.fixture(scope="session")
def rivers() -> list[Document]:
    """Documents, best first."""
    texts = {
        "Lyon": "Lyon lies where the Rhône and the Saône meet.",
        "Nantes": 'Nantes lies on the Loire, [[rm:doc]] & not far from the "sea".',
        "Paris": "The Seine flows through Paris.",
        "Bordeaux": "Bordeaux lies on the Garonne.\n\nIt has a {bridge}.",
    }
    return [
        Document(text, id=title, metadata={"title": title, "score": 0.9 - 0.1 * place})
        for place, (title, text) in enumerate(texts.items())
    ]
