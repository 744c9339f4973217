"""From what rag-middle generated to what LangChain hands on.

The content of an answer stays a string, whatever it cites: chains and parsers expect one. LangChain
asks the provider's translator for `AIMessage.content_blocks`, and those have the annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.block_translators import register_translator
from langchain_core.messages.content import ContentBlock

from rag_middle import UnsupportedGenerationError
from rag_middle.integration import openai_logprobs

if TYPE_CHECKING:
    from rag_middle import Generation, RagMiddleModel

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

    Raises:
        UnsupportedGenerationError: several answers are asked for.
    """
    if options["n"] > 1:
        raise UnsupportedGenerationError(
            f"A stream has one answer, and n={options['n']} were asked for: use generate(), or n=1."
        )
    options = {name: value for name, value in options.items() if name != "n"}
    if options["num_beams"] > 1:  # known at the end only
        generation = model.generate(prompt, **options)
        yield piece(generation.text)
    else:
        with model.stream(prompt, **options) as stream:
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


def answers(
    model: RagMiddleModel, prompts: Sequence[Any], options: Mapping[str, Any], **more: Any
) -> list[list[Generation]]:
    """What the model answers to each prompt: ``n`` texts, drawn with consecutive seeds.

    Args:
        model: that answers.
        prompts: any number; they share forward passes.
        options: of `RagMiddleModel.batch`, and ``n``.
        more: of `RagMiddleModel.batch`, too.
    """
    single = {name: value for name, value in options.items() if name != "n"}
    count = options["n"]
    if count > 1 and single["seed"] is not None:
        single["seed"] = [single["seed"] + index for _ in prompts for index in range(count)]
    repeated = [prompt for prompt in prompts for _ in range(count)]
    texts = model.batch(repeated, **single, **more)
    return [texts[start : start + count] for start in range(0, len(texts), count)]


def token_usage(generations: Sequence[Sequence[Generation]]) -> dict[str, int]:
    """Token counts under OpenAI's names; a prompt with several answers counts once."""
    prompts = sum(texts[0].usage.prompt_tokens for texts in generations)
    new = sum(text.usage.completion_tokens for texts in generations for text in texts)
    return {"prompt_tokens": prompts, "completion_tokens": new, "total_tokens": prompts + new}


def _blocks(message: AIMessage) -> list[ContentBlock]:
    citations = (message.response_metadata.get("rag_middle") or {}).get("citations")
    if not citations:
        raise NotImplementedError  # LangChain then reads the content by itself
    others = {
        name: value for name, value in message.response_metadata.items() if name != "model_provider"
    }
    blocks: list[Any] = list(
        message.model_copy(update={"response_metadata": others}).content_blocks
    )
    text = next((block for block in blocks if block["type"] == "text"), None)
    if text is None:  # the last chunk of a stream
        text = {"type": "text", "text": ""}
        blocks.append(text)
    text["annotations"] = [*text.get("annotations", ()), *citations]
    return blocks


register_translator(PROVIDER, _blocks, _blocks)
