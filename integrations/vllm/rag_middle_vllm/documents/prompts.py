"""From a prompt with documents to what vLLM is sent: its tokens, and where the documents lie.

Documents are tokenised one by one, as `rag_middle.tokens.encode` always does, so that the same
documents are the same tokens in every prompt, whatever vLLM's own renderer would make of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rag_middle.errors import PromptError
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt, encode
from rag_middle_vllm.documents.admission import BOUNDS, METHOD, TOKENS
from rag_middle_vllm.documents.methods import document_method

if TYPE_CHECKING:
    from vllm import SamplingParams, TokensPrompt

    from rag_middle.tokens.encode import Prompt

#: The field that holds the text of a part, by type. Two of the types are those of responses.
_FIELDS = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
    "thinking": "thinking",
}


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
        TOKENS: len(tokenized),
    }
    return TokensPrompt(prompt_token_ids=list(tokenized.input_ids)), params


def document_edges(prompt: TokenizedPrompt) -> list[int]:
    """The indices where documents begin and where the last one ends; none of empty documents.

    A document without tokens changes nothing under any method served here.
    """
    return sorted(
        {index for start, end in prompt.layout.documents if start < end for index in (start, end)}
    )


def plain_messages(messages: Any, model_config: Any) -> list[dict[str, Any]]:
    """Chat messages as vLLM hands them to a template, with contents that are strings.

    Parts are joined by line ends, and where there is no content, there is an empty one.

    Raises:
        PromptError: a content holds something else than text.
        VLLMValidationError: vLLM refuses the messages.
    """
    from vllm.renderers.chat_utils import parse_chat_messages

    plain = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "\n".join(_texts(list(content)))
        plain.append({**message, "content": content})
    # Arguments of calls, empty lists of calls, reasoning, fields that templates do not know.
    return list(parse_chat_messages(plain, model_config, content_format="string")[0])


def _texts(parts: list[Any]) -> list[str]:
    kinds = {part.get("type") if isinstance(part, dict) else str for part in parts}
    if not kinds <= {*_FIELDS, str}:
        raise PromptError(
            f"A message with documents holds text only; got parts of {sorted(map(str, kinds))}."
        )
    texts = [part if isinstance(part, str) else part.get(_FIELDS[part["type"]]) for part in parts]
    if not all(isinstance(text, str) for text in texts if text is not None):
        raise PromptError("A part of a message has a text that is not a string.")
    return [text for text in texts if text]


def without_developers(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without the role ``developer``, which few templates know.

    Those of developers are the system's, and one message has all of these, as many templates want.
    """
    system = ("system", "developer")
    texts = [message["content"] for message in messages if message["role"] in system]
    others = [message for message in messages if message["role"] not in system]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]
