"""What a request asks the model for: everything that can be refused without the model is."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from inspect import signature
from typing import Any

from transformers import PreTrainedTokenizerBase

from rag_middle.generation import RagMiddleModel
from rag_middle.generation.prompts import fit_to_window
from rag_middle.registry import suggest
from rag_middle.serving.batching import AnswerJob, Piece
from rag_middle.serving.errors import ApiError
from rag_middle.serving.prompts import chat_prompt
from rag_middle.serving.schema import ChatRequest
from rag_middle.serving.settings import ServerSettings
from rag_middle.tokens import TokenizedPrompt
from rag_middle.tokens.templates import reads_option
from rag_middle.tokens.text import TextEncoder

#: What the caller of a template says itself: `chat_template_kwargs` must not.
_TAKEN = frozenset({*signature(PreTrainedTokenizerBase.apply_chat_template).parameters, "messages"})
_MOST_LOGPROBS = 200_000  # of one answer: some 20 MB
_SAMPLING = "temperature top_p top_k typical_p repetition_penalty no_repeat_ngram_size".split()


def make_jobs(
    model: RagMiddleModel,
    settings: ServerSettings,
    body: ChatRequest,
    emit: Callable[[AnswerJob, Piece], None],
) -> list[AnswerJob]:
    """The answers that a request asks for, ready for the queue.

    Raises:
        RagMiddleError: the request asks for what there is not, or its prompt does not fit.
        ApiError: likewise.
    """
    ignored = _check_fields(body, settings, model)
    name = settings.default_method if body.method is None else body.method
    method = settings.methods[name]
    if body.n > settings.max_waiting:
        raise _refused("n", f"No more than {settings.max_waiting} can wait: ask for fewer answers.")
    entries = body.n * (1 + body.top_logprobs) if body.logprobs else 0
    if entries * (body.max_tokens or settings.defaults.max_new_tokens) > _MOST_LOGPROBS:
        message = f"{_MOST_LOGPROBS:,} log-probabilities are the most: set a smaller max_tokens."
        raise _refused("logprobs", message)
    constraints = body.constraints()
    shape: dict[str, Any] = {
        "system": settings.defaults.system,
        "tools": constraints.get("tools"),
        "template_options": _template_options(body, settings, model),
    }
    # Also where no tool may be called: what was called before is in the conversation.
    trusted, tools = settings.trust_markers, bool(body.tools)
    request = chat_prompt(body.messages, body.documents, trusted=trusted, has_tools=tools)
    if len(request.documents) > settings.max_documents:
        message = f"There are more than {settings.max_documents} documents. Send fewer."
        raise _refused("documents", message)
    # A method that asks another prompt does so before a chat template is put around it.
    tokens = model.encode(request.prompt, method=method if method.rewrites else "none", **shape)
    limit = _new_tokens(body, settings, model, tokens)
    options = {**_options(body, settings), "max_new_tokens": limit, **constraints}
    options |= shape if method.rewrites else {}
    response_fields = {
        "method": name,
        "unread_markers": request.has_unread_markers,
        "ignored_fields": ignored,
    }
    seed = secrets.randbits(32) if body.seed is None else body.seed
    return [
        AnswerJob(
            index=index,
            documents=request.documents,
            response_fields=response_fields,
            prompt=request.prompt if method.rewrites else tokens,
            method=method,
            # By its spelling: Python calls 1, 1.0 and True equal, and schemas in any order.
            group=f"{name} {options!r}",
            options=options,
            seed=seed + index,
            streams=body.stream,
            emit=emit,
        )
        for index in range(body.n)
    ]


def _refused(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def _check_fields(body: ChatRequest, settings: ServerSettings, model: RagMiddleModel) -> list[str]:
    """Refuse models, methods and fields that are not there; the fields that are ignored."""
    if body.model != settings.model_name:
        message = f"There is no model {body.model!r:.100} here, only {settings.model_name!r}."
        raise ApiError(404, message, param="model", code="model_not_found")
    if body.method is not None and body.method not in settings.methods:
        names = f"{suggest(body.method, settings.methods)} Methods: {', '.join(settings.methods)}."
        message = f"There is no method {body.method!r:.100} here.{names}"
        raise _refused("method", message, "method_not_allowed")
    of_template = [name for name in body.chat_template_kwargs if not _is_read(name, model)]
    unknown = [*(body.model_extra or {}), *(f"chat_template_kwargs.{it}" for it in of_template)]
    unknown = [name[:100] for name in unknown[:20]]
    if unknown and not settings.ignore_unknown_fields:
        hint = suggest(unknown[0].split(".")[-1], ChatRequest.model_fields)
        raise _refused(unknown[0], f"{unknown[0]}: not supported here, leave it out.{hint}")
    return unknown


def _is_read(option: str, model: RagMiddleModel) -> bool:
    """Whether the model's chat template reads an option that requests may set."""
    return option not in _TAKEN and reads_option(model.tokenizer, option)


def _template_options(
    body: ChatRequest, settings: ServerSettings, model: RagMiddleModel
) -> dict[str, Any]:
    """Of the server and the request, and whether the answer goes on in the last message."""
    chosen = {name: v for name, v in body.chat_template_kwargs.items() if _is_read(name, model)}
    for name, value in chosen.items():
        if isinstance(value, str) and len(TextEncoder(model.tokenizer).inert_pieces(value)) > 1:
            raise _refused("chat_template_kwargs", f"{name}: leave control tokens out.")
    options = {**(settings.defaults.template_options or {}), **chosen}
    if not body.continue_final_message:
        begins = body.add_generation_prompt is not False
        return options if begins else {**options, "add_generation_prompt": False}
    if body.add_generation_prompt or body.messages[-1].role != "assistant":
        raise _refused(
            "continue_final_message",
            "continue_final_message goes on in a last message of the assistant: send one, and "
            "leave out add_generation_prompt.",
        )
    return {**options, "continue_final_message": True}


def _new_tokens(
    body: ChatRequest, settings: ServerSettings, model: RagMiddleModel, tokens: TokenizedPrompt
) -> int:
    """The most new tokens.

    Raises:
        ContextOverflowError: the prompt does not fit. Refused here, and not in a batch with others.
    """
    window = model.context_window
    drops = settings.defaults.on_overflow == "drop_documents"
    limit = body.max_tokens or settings.defaults.max_new_tokens
    if body.max_tokens is None and window is not None:
        room = window - len(tokens) + drops * sum(tokens.layout.document_lengths)
        # Nobody asked for so many tokens. By halves, so that requests share batches.
        while limit > max(room, 1):
            limit //= 2
    fit_to_window(tokens, max_new_tokens=limit, context_window=window, drop_documents=drops)
    return limit


def _options(body: ChatRequest, settings: ServerSettings) -> dict[str, Any]:
    """Options of `RagMiddleModel.batch`: of the request, else of the server."""
    defaults = settings.defaults
    requested = {name: getattr(body, name) for name in _SAMPLING}
    sampling = {n: getattr(defaults, n) if v is None else v for n, v in requested.items()}
    return {
        **sampling,
        "top_k": max(sampling["top_k"], 0),  # -1: all, for vLLM
        "stop": tuple(body.stop),
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        "eos_token_id": defaults.eos_token_id,
        "on_overflow": defaults.on_overflow,
        "on_missing_documents": "ignore",  # the answer says that it was not applied
    }
