"""Several answers to a prompt, and their token counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_rag_middle.arguments import names_of_fields
from rag_middle import UnsupportedGenerationError

if TYPE_CHECKING:
    from rag_middle import Generation, RagMiddleModel

__all__ = ["answers", "combined_output", "stream_options", "token_usage"]


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
    with names_of_fields():
        texts = model.batch(repeated, **single, **more)
    return [texts[start : start + count] for start in range(0, len(texts), count)]


def stream_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a stream, which has one answer.

    Raises:
        UnsupportedGenerationError: several are asked for.
    """
    if options["n"] > 1:
        raise UnsupportedGenerationError(
            f"A stream has one answer, and n={options['n']} were asked for: use generate(), or n=1."
        )
    return {name: value for name, value in options.items() if name != "n"}


def token_usage(generations: Sequence[Sequence[Generation]]) -> dict[str, int]:
    """Token counts under OpenAI's names; a prompt with several answers counts once."""
    prompts = sum(texts[0].usage.prompt_tokens for texts in generations)
    new = sum(text.usage.completion_tokens for texts in generations for text in texts)
    return {"prompt_tokens": prompts, "completion_tokens": new, "total_tokens": prompts + new}


def combined_output(outputs: Sequence[Mapping[str, Any] | None], model_name: str) -> dict[str, Any]:
    """``llm_output`` of several calls; those that a cache or a stream answered have none."""
    total: dict[str, int] = {}
    for output in outputs:
        for name, count in (output or {}).get("token_usage", {}).items():
            total[name] = total.get(name, 0) + count
    return {"token_usage": total, "model_name": model_name}
