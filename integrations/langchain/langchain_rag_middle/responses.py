"""From what rag-middle generated to what LangChain hands on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.messages.ai import UsageMetadata

from langchain_rag_middle.answers import stream_options
from langchain_rag_middle.arguments import names_of_fields
from rag_middle.conventions.log_probabilities import openai_logprobs

if TYPE_CHECKING:
    from rag_middle import Generation, RagMiddleModel

__all__ = ["PROVIDER", "response_metadata", "streamed", "usage"]

PROVIDER = "rag-middle"

Chunk = TypeVar("Chunk")


def streamed(
    model: RagMiddleModel,
    prompt: Any,
    options: Mapping[str, Any],
    piece: Callable[[str], Chunk],
    last: Callable[[Generation], Chunk],
) -> Generator[Chunk, None, None]:
    """An answer in chunks.

    What is known only once, such as token counts, comes with the last chunk: merging chunks would
    put strings together.

    Args:
        model: that answers.
        prompt: as `RagMiddleModel` takes it.
        options: of `RagMiddleModel.generate`.
        piece: makes a chunk of text.
        last: makes the last chunk, which has none.
    """
    options = stream_options(options)
    if options["num_beams"] > 1:  # known at the end only
        with names_of_fields():
            generation = model.generate(prompt, **options)
        yield piece(generation.text)
    else:
        with names_of_fields():
            pieces = model.stream(prompt, **options)
        with pieces as stream:
            for new in stream:
                if new:
                    yield piece(new)
            generation = stream.result
    yield last(generation)


def usage(generation: Generation) -> UsageMetadata:
    """Exact token counts."""
    return UsageMetadata(
        input_tokens=generation.usage.prompt_tokens,
        output_tokens=generation.usage.completion_tokens,
        total_tokens=generation.usage.total_tokens,
    )


def response_metadata(
    generation: Generation, model_name: str, token_text: Callable[[int], str]
) -> dict[str, Any]:
    """What is known of an answer besides its text, as JSON-ready values.

    ``logprobs``, where they were asked for, are as OpenAI's. ``rag_middle`` holds the method,
    whether it was applied, the number of documents, their ids, those left out, timings in seconds,
    the seed and the stop string.
    """
    report = generation.report()
    del report["invalid_tool_calls"]  # messages have a field for them
    return {
        "model_name": model_name,
        "model_provider": PROVIDER,
        "finish_reason": generation.finish_reason,
        **(
            {"logprobs": openai_logprobs(generation.log_probabilities, token_text)}
            if generation.log_probabilities
            else {}
        ),
        "rag_middle": report,
    }
