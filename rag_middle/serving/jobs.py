"""What a request asks the model for: everything that can be refused without the model is."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import Any

from transformers import PreTrainedTokenizerBase

from rag_middle.generation import RagMiddleModel
from rag_middle.generation.prompts import awaits_retrieval, fit_to_window
from rag_middle.methods import Method
from rag_middle.registry import suggest
from rag_middle.serving.batching import AnswerJob, Piece
from rag_middle.serving.errors import ApiError
from rag_middle.serving.prompts import RequestPrompt, chat_prompt, text_prompt
from rag_middle.serving.schema import Body, ChatRequest
from rag_middle.serving.settings import ServerSettings
from rag_middle.tokens import TokenizedPrompt
from rag_middle.tokens.templates import reads_option
from rag_middle.tokens.text import TextEncoder

_log = logging.getLogger(__name__)
#: What the caller of a template says itself: `chat_template_kwargs` must not.
_TAKEN = frozenset({*signature(PreTrainedTokenizerBase.apply_chat_template).parameters, "messages"})
_MOST_LOGPROBS = 200_000  # of one answer: some 20 MB
_SAMPLING = "temperature top_p top_k typical_p repetition_penalty no_repeat_ngram_size".split()


def make_jobs(
    model: RagMiddleModel,
    settings: ServerSettings,
    body: Body,
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
    count = body.n * (1 if isinstance(body, ChatRequest) else len(body.prompt))
    if count > settings.max_waiting:
        raise _refused("n", f"No more than {settings.max_waiting} can wait: ask for fewer answers.")
    entries = 0 if body.alternatives is None else 1 + body.alternatives
    if entries * count * (body.max_tokens or settings.defaults.max_new_tokens) > _MOST_LOGPROBS:
        message = f"{_MOST_LOGPROBS:,} log-probabilities are the most: set a smaller max_tokens."
        raise _refused("logprobs", message)
    constraints = body.constraints()
    shape: dict[str, Any] = {"system": settings.defaults.system, "template": "raw"}
    shape["tools"] = constraints.get("tools")
    if isinstance(body, ChatRequest):
        shape["template"] = "auto"
        shape["template_options"] = _template_options(body, settings, model)
    seed = secrets.randbits(32) if body.seed is None else body.seed
    jobs: list[AnswerJob] = []
    for request in _prompts(body, settings):
        # A method that asks another prompt does so before a chat template is put around it.
        tokens = model.encode(request.prompt, method=method if method.rewrites else "none", **shape)
        limit, dropped = _fitted(body, settings, model, tokens)
        warnings = [*ignored, *_warnings(body, request, method, dropped)]
        for warning in warnings:
            _log.warning("%s", warning)
        options = {**_options(body, settings), "max_new_tokens": limit, **constraints}
        options |= shape if method.rewrites else {}
        facts = {"method": name, "unread_markers": request.has_unread_markers, "warnings": warnings}
        for number in range(body.n):
            job = AnswerJob(
                index=len(jobs),
                documents=request.documents,
                facts=facts,
                prompt=request.prompt if method.rewrites else tokens,
                method=method,
                # By its spelling: Python calls 1, 1.0 and True equal, and schemas in any order.
                group=f"{name} {options!r}",
                options=options,
                seed=seed + number,
                streams=body.stream,
                emit=emit,
            )
            jobs.append(job)
    return jobs


def _refused(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def _check_fields(body: Body, settings: ServerSettings, model: RagMiddleModel) -> list[str]:
    """Refuse models, methods and fields that are not there; what to say of ignored ones."""
    if body.model != settings.model_name:
        message = f"There is no model {body.model!r:.100} here, only {settings.model_name!r}."
        raise ApiError(404, message, param="model", code="model_not_found")
    if body.method is not None and body.method not in settings.methods:
        names = f"{suggest(body.method, settings.methods)} Methods: {', '.join(settings.methods)}."
        message = f"There is no method {body.method!r:.100} here.{names}"
        raise _refused("method", message, "method_not_allowed")
    unknown = [*(body.model_extra or {})]
    if isinstance(body, ChatRequest):
        of_template = [name for name in body.chat_template_kwargs if not _is_read(name, model)]
        unknown += [f"chat_template_kwargs.{name}" for name in of_template]
    unknown = [name[:100] for name in unknown[:20]]
    if unknown and not settings.ignore_unknown_fields:
        hint = suggest(unknown[0].split(".")[-1], ChatRequest.model_fields)
        raise _refused(unknown[0], f"{unknown[0]}: not supported here, leave it out.{hint}")
    # Quoted, since the log has them too: a name may hold ends of lines.
    return [f"Ignored, as not supported here: {', '.join(map(repr, unknown))}."] if unknown else []


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


def _prompts(body: Body, settings: ServerSettings) -> Iterator[RequestPrompt]:
    trusted, documents = settings.trust_markers, body.documents
    prompts: Iterable[RequestPrompt]
    if isinstance(body, ChatRequest):
        # Also where none may be called: what was called before is in the conversation.
        tools = bool(body.tools)
        prompts = [chat_prompt(body.messages, documents, trusted=trusted, has_tools=tools)]
    else:
        prompts = (text_prompt(text, documents, trusted=trusted) for text in body.prompt)
    for prompt in prompts:
        if len(prompt.documents) > settings.max_documents:
            message = f"There are more than {settings.max_documents} documents. Send fewer."
            raise _refused("documents", message)
        yield prompt


def _fitted(
    body: Body, settings: ServerSettings, model: RagMiddleModel, tokens: TokenizedPrompt
) -> tuple[int, int]:
    """The most new tokens, and how many documents have no room.

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
    _, dropped = fit_to_window(
        tokens, max_new_tokens=limit, context_window=window, drop_documents=drops
    )
    return limit, len(dropped)


def _options(body: Body, settings: ServerSettings) -> dict[str, Any]:
    """Options of `RagMiddleModel.batch`: of the request, else of the server."""
    defaults = settings.defaults
    requested = {name: getattr(body, name) for name in _SAMPLING}
    sampling = {n: getattr(defaults, n) if v is None else v for n, v in requested.items()}
    return {
        **sampling,
        "top_k": max(sampling["top_k"], 0),  # -1: all, for vLLM
        "stop": tuple(body.stop),
        "logprobs": body.alternatives is not None,
        "top_logprobs": body.alternatives or 0,
        "eos_token_id": defaults.eos_token_id,
        "on_overflow": defaults.on_overflow,
        "on_missing_documents": "ignore",  # the answer says so, see `_warnings`
    }


def _warnings(body: Body, request: RequestPrompt, method: Method, dropped: int) -> Iterator[str]:
    """What a client may not have meant, for the answer and the log; nothing of what it sent."""
    lost = [part.name for part in method.parts if part.needs_documents and not part.is_neutral]
    documents = len(request.documents)
    chat = body if isinstance(body, ChatRequest) else None
    if dropped and dropped == documents:
        yield f"None of the {documents} documents fits into the context window."
    if lost and not documents and not (chat and chat.tools and awaits_retrieval(request.prompt)):
        yield (
            f"{' and '.join(lost)} needs documents, and this request has none that the server can "
            "tell: nothing is changed. Send them as `documents`, as blocks, or marked with the "
            "server's RAG_MIDDLE_MARKER_KEY."
        )
    if chat and chat.messages[-1].role == "assistant" and not chat.continue_final_message:
        yield (
            "The last message is the assistant's, and another answer was begun after it: pass "
            "continue_final_message=true to go on in it."
        )
