"""From a prompt with documents to what vLLM is sent: its tokens, and where the documents lie.

Documents are tokenised one by one, as `rag_middle.tokens.encode` always does, so that the same
documents are the same tokens in every prompt, whatever vLLM's own renderer would make of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rag_middle.errors import PromptError
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt, encode
from rag_middle_vllm.documents.admission import BOUNDS, METHOD
from rag_middle_vllm.documents.methods import document_method

if TYPE_CHECKING:
    from vllm import SamplingParams, TokensPrompt

    from rag_middle.tokens.encode import Prompt

__all__ = ["document_edges", "document_request", "plain_messages"]


def document_request(
    tokenizer: Any,
    prompt: Prompt,
    method: Method,
    params: SamplingParams | None = None,
    **encoding: Any,
) -> tuple[TokensPrompt, SamplingParams]:
    """A request for `LLM.generate` or `AsyncLLM.generate`, read by a method.

    Args:
        tokenizer: of the model, a Hugging Face one.
        prompt: a `ContextPrompt`, a string with marked documents, or chat messages.
        method: one that the engine serves, with the parameters that it was started with.
        params: of the answer; vLLM's defaults where None.
        encoding: options of `rag_middle.tokens.encode`: ``template``, ``system`` ...

    Returns:
        The prompt in tokens, and a copy of the parameters that carries the method and the bounds of
        the documents.

    Raises:
        MethodConfigError: a method that vLLM does not serve by request.
        PromptError: the prompt is empty, or of another form.
        MarkerError: the documents do not stand together.
    """
    from vllm import SamplingParams, TokensPrompt

    tokenized = document_method(method).arranged(encode(tokenizer, prompt, **encoding))
    params = SamplingParams() if params is None else params.clone()
    params.extra_args = {
        **(params.extra_args or {}),
        METHOD: method.name,
        BOUNDS: document_edges(tokenized),
    }
    return TokensPrompt(prompt_token_ids=list(tokenized.input_ids)), params


def document_edges(prompt: TokenizedPrompt) -> list[int]:
    """The indices where documents begin and where the last one ends; none of empty documents.

    A document without tokens changes nothing under any method served here.
    """
    return sorted(
        {index for start, end in prompt.layout.documents if start < end for index in (start, end)}
    )


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Chat messages with contents that are strings, as vLLM makes them of OpenAI's other forms.

    Parts are joined by line ends, and where there is no content, there is an empty one.

    Raises:
        PromptError: a content holds something else than text.
    """
    plain = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            parts = list(content)
            kinds = {part.get("type") if isinstance(part, dict) else str for part in parts}
            if not kinds <= {"text", "input_text", "output_text", str}:  # as responses name them
                raise PromptError(
                    "A message with documents holds text only; got parts of "
                    f"{sorted(map(str, kinds))}."
                )
            texts = [part if isinstance(part, str) else part.get("text") for part in parts]
            texts = [text for text in texts if text is not None]
            if not all(isinstance(text, str) for text in texts):
                raise PromptError("A part of a message has a text that is not a string.")
            content = "\n".join(texts)
        plain.append({**message, "content": content})
    return plain
