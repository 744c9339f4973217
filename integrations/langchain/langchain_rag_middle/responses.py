"""From what rag-middle generated to what LangChain hands on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages.ai import UsageMetadata

if TYPE_CHECKING:
    from rag_middle import Generation

__all__ = ["PROVIDER", "response_metadata", "usage"]

PROVIDER = "rag-middle"


def usage(generation: Generation) -> UsageMetadata:
    """Exact token counts."""
    return UsageMetadata(
        input_tokens=generation.usage.prompt_tokens,
        output_tokens=generation.usage.completion_tokens,
        total_tokens=generation.usage.total_tokens,
    )


def response_metadata(generation: Generation, model_name: str) -> dict[str, Any]:
    """What is known of an answer besides its text, as JSON-ready values.

    ``rag_middle`` holds the method, whether it was applied, the number of documents, their ids,
    those left out, timings in seconds, the seed and the stop string.
    """
    everything = generation.to_dict()
    for name in ("text", "token_ids", "usage"):
        del everything[name]
    for name in ("document_ids", "dropped_documents"):
        everything[name] = list(everything[name])  # as they come back from a cache
    return {
        "model_name": model_name,
        "model_provider": PROVIDER,
        "finish_reason": everything.pop("finish_reason"),
        "rag_middle": everything,
    }
