"""LangChain's own tests of retrievers, with the embedding that needs no network."""

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_rag_middle import FaissRetriever

pytestmark = pytest.mark.anyio


TEXTS = [
    "Lyon lies where the Rhône and the Saône meet.",
    "Nantes lies on the Loire, not far from the sea.",
    "The Garonne flows through Bordeaux.",
    "Bread is baked of flour, water and salt.",
]


@pytest.fixture(scope="module")
def rivers_index() -> Any:
    return FaissRetriever.from_documents(map(Document, TEXTS)).index


class TestFaissRetrieverStandard(RetrieversIntegrationTests):
    index: Any

    @pytest.fixture(autouse=True)
    def _index(self, rivers_index: Any) -> None:
        self.index = rivers_index

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return FaissRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.index}

    @property
    def retriever_query_example(self) -> str:
        return "Which river flows through Nantes?"
