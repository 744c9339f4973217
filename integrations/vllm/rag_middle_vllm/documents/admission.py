"""What a request may ask for: checked before the engine has it, where a refusal is HTTP 400.

A request carries the name of its method and where its documents lie in `SamplingParams.extra_args`,
which vLLM hands on to its workers. Its keys and values differ from the unmodified model's on the
same tokens, so it gets a cache salt of its own: one that names the method and the documents, and
that no other request can choose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from rag_middle_vllm.documents.methods import ServedMethod, document_methods
from rag_middle_vllm.hooks import hook
from rag_middle_vllm.options import DOCUMENTS, OPTION, option_of

#: Keys of `extra_args` (``vllm_xargs`` in HTTP): the method's name, and the indices of the tokens
#: where each document begins and where the last one ends; no index where there are no documents.
METHOD, BOUNDS = OPTION, f"{OPTION}_documents"
#: How many tokens the prompt has that the bounds were made for, where the request says so.
TOKENS = f"{OPTION}_tokens"

_SALT = "rag-middle:"
# No text has so many per token; reading a long one keeps all other requests with documents waiting.
_CHARACTERS_PER_TOKEN, _SPARE_CHARACTERS = 16, 1 << 16


def carried(params: Any) -> tuple[str, tuple[int, ...]] | None:
    """The name and the bounds that an admitted request carries.

    None where it has no documents, or only empty ones: the unmodified model reads the same.
    """
    extra = getattr(params, "extra_args", None) or {}
    bounds = tuple(extra.get(BOUNDS) or ())
    return (extra[METHOD], bounds) if bounds else None


class Admission:
    """Admits requests to one engine.

    Args:
        methods: that it serves, by name; none where documents are not enabled.
        max_model_len: of the engine.
    """

    def __init__(self, methods: Mapping[str, ServedMethod], max_model_len: int) -> None:
        self.methods = methods
        self._max_model_len = max_model_len

    @classmethod
    def of_engine(cls, vllm_config: Any) -> Admission:
        """As the engine's options have it."""
        option = option_of(vllm_config, vllm_config.model_config) or {}
        methods = document_methods(option[DOCUMENTS]) if DOCUMENTS in option else {}
        return cls(methods, vllm_config.model_config.max_model_len)

    def method(self, name: object) -> ServedMethod:
        """The method of this name.

        Raises:
            VLLMValidationError: it is not served here.
        """
        if not isinstance(name, str) or name not in self.methods:
            served = ", ".join(sorted(self.methods)) or "none: documents are not enabled"
            raise refusal(f"This engine does not serve the method {name!r}. It serves {served}.")
        return self.methods[name]

    def check_characters(self, count: int) -> None:
        """Make sure that a prompt of so many characters may fit, before the tokenizer reads it.

        Raises:
            VLLMValidationError: it cannot.
        """
        if count > self._max_model_len * _CHARACTERS_PER_TOKEN + _SPARE_CHARACTERS:
            raise refusal(
                f"A prompt of {count:,} characters cannot fit into {self._max_model_len:,} tokens: "
                "pass fewer or shorter documents."
            )

    def check_prompt(self, method: object, bounds: object, tokens: int) -> tuple[int, ...]:
        """The bounds of the documents in a prompt of so many tokens.

        Raises:
            VLLMValidationError: the method is not served, the bounds are none, or the prompt leaves
                no room for an answer.
        """
        self.method(method)
        if not isinstance(bounds, Sequence) or isinstance(bounds, str):
            raise refusal(
                f"The request names the method {method!r} and does not say where its documents "
                f"are: {BOUNDS} should list the indices of the tokens where each begins and where "
                "the last one ends. Mark the documents in the text of a chat or a completion, or "
                "make the request with rag_middle_vllm.documents.document_request."
            )
        checked = tuple(bounds)
        whole = all(type(bound) is int for bound in checked)
        # Equal ones would be empty documents, of which a request could have any number.
        ordered = whole and all(a < b for a, b in pairwise((-1, *checked, tokens + 1)))
        if len(checked) == 1 or not ordered:
            raise refusal(
                f"{BOUNDS} should be two or more different indices in ascending order, none beyond "
                f"the {tokens} tokens of the prompt, or empty; got {list(checked)[:8]}."
            )
        if tokens >= self._max_model_len:
            raise refusal(
                f"The prompt has {tokens} tokens, and this engine reads {self._max_model_len} with "
                "the answer: pass fewer or shorter documents."
            )
        return checked

    def admit(self, request: Any, *, resumable: bool = False) -> None:
        """Check a request that vLLM has made ready for its engine, and salt it.

        Args:
            request: an `EngineCoreRequest`, changed in place.
            resumable: whether more of its prompt may follow.

        Raises:
            VLLMValidationError: it cannot be served under its method.
        """
        if request.cache_salt is not None and request.cache_salt.startswith(_SALT):
            raise refusal(f"A cache_salt that begins with {_SALT!r} is reserved. Choose another.")
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        if METHOD not in extra:
            if BOUNDS in extra:
                raise refusal(f"{BOUNDS} is given, and no method: set {METHOD} as well.")
            return
        if request.prompt_embeds is not None or request.mm_features:
            raise refusal("Documents are served in prompts of text only, without images or embeds.")
        if resumable:
            raise refusal("Documents are not served in prompts that are continued later.")
        ids = request.prompt_token_ids
        if extra.get(TOKENS, len(ids)) != len(ids):
            raise refusal(
                f"The request was made for a prompt of {extra[TOKENS]} tokens, and this one has "
                f"{len(ids)}: its documents would be elsewhere. Have no prompt cut "
                "(tokenization_kwargs), and give each the parameters that were made with it."
            )
        bounds = self.check_prompt(extra[METHOD], extra.get(BOUNDS), len(ids))
        if carried(request.sampling_params) is not None:
            read = ids[: bounds[-1]]
            content = [self.methods[extra[METHOD]].identity(), bounds, read, request.cache_salt]
            digest = blake2b(json.dumps(content).encode(), digest_size=24).hexdigest()
            request.cache_salt = f"{_SALT}{extra[METHOD]}:{digest}"


def refusal(reason: str) -> Exception:
    """The error that vLLM's servers answer with HTTP 400."""
    from vllm.exceptions import VLLMValidationError

    error: Exception = VLLMValidationError(reason, parameter=METHOD)
    return error


def hook_admission(processor: type[Any]) -> None:
    """Let a class `InputProcessor` admit what it processes."""

    def admitting(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
        def process(self: Any, *args: Any, **kwargs: Any) -> Any:
            request = process_inputs(self, *args, **kwargs)
            admission = Admission.of_engine(self.vllm_config)
            admission.admit(request, resumable=kwargs.get("resumable", False))
            return request

        return process

    hook(processor, process_inputs=admitting)


def hook_cache(manager: type[Any]) -> None:
    """Let a class `KVCacheManager` reuse the documents of a prompt together or not at all.

    A document's tokens are read together with all that they attend to. Where only some of it is
    cached (blocks are evicted one by one, and end anywhere in a prompt), it is read again.
    """

    def whole(get_computed_blocks: Callable[..., Any]) -> Callable[..., Any]:
        def get(self: Any, request: Any) -> Any:
            computed = get_computed_blocks(self, request)
            documents = carried(request.sampling_params)
            if documents is None or computed[1] >= documents[1][-1]:
                return computed
            return self.empty_kv_cache_blocks, 0, *computed[2:]

        return get

    hook(manager, get_computed_blocks=whole)
