"""The invented things for LangChain and LlamaIndex."""

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import TextNode

from tests.applications.world import TEXTS, embedding


def documents() -> list[Document]:
    """All of them for LangChain."""
    return [
        Document(text, id=name.split()[0].lower(), metadata={"title": name, "source": f"{name}.md"})
        for name, text in TEXTS.items()
    ]


def nodes() -> list[TextNode]:
    """The same for LlamaIndex."""
    return [TextNode(text=text, id_=name.split()[0].lower()) for name, text in TEXTS.items()]


class WordEmbeddings(Embeddings):
    """`embedding` for LangChain."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [embedding(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return embedding(text)


class WordEmbedding(BaseEmbedding):
    """`embedding` for LlamaIndex."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return embedding(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embedding(query)
