"""lm-evaluation-harness with this package's methods, over any of its tasks.

::

    python -m rag_middle.evaluation.harness run --model rag-middle --tasks mmlu \\
        --model_args pretrained=Qwen/Qwen2.5-7B-Instruct,method=lpes,dtype=bfloat16

The harness finds models by name among those it has imported and has no plug-ins; this module
registers ``rag-middle`` and then is the harness's own command, with all its options. The plain
command ``lm_eval`` finds the model where ``lm_eval.yaml`` beside this file is among its tasks. From
Python, importing this module is enough: ``lm_eval.simple_evaluate(model="rag-middle", ...)``.

Plain contexts are tokenised exactly as the harness's ``hf`` model does, so that ``method=none``
gives its numbers. Where a task marks documents in its contexts with `rag_middle.mark`, methods that
need documents have them. A template cannot call it, and can write
``[[rm:doc]]{{text}}[[/rm:doc]]`` instead: the argument ``trust_markers=true`` says that such
markers count, wherever in a context they come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from jinja2 import TemplateError

from rag_middle.documents import ContextPrompt, parse
from rag_middle.errors import ConfigError, MissingExtraError
from rag_middle.generation import RagMiddleModel
from rag_middle.notices import ChatTemplateWarning, warn_caller
from rag_middle.tokens import TokenizedPrompt

try:
    # The harness lists its own models only where it knows of none: before this one is registered.
    import lm_eval.models  # noqa: F401
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "The lm-evaluation-harness adapter", package="lm-eval", extra="eval"
    ) from error

_DEFAULT_WINDOW = 2048  # tokens, where the model's config says nothing
_DEFAULT_NEW_TOKENS = 256
_METHOD_PREFIX = "method_"
_LOADING = ("dtype", "attn_implementation", "revision", "trust_remote_code")
#: What tasks may ask of generation besides ends and temperature, by the same names as here.
_CHOICE = ("top_p", "top_k", "typical_p")
_GENERATION = (*_CHOICE, "repetition_penalty", "no_repeat_ngram_size", "num_beams")
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_TOP_K = 50  # of transformers, where nothing else is said


@register_model("rag-middle")
class RagMiddleLM(TemplateLM):  # type: ignore[misc]
    """A model under a method, as the harness wants it.

    Args:
        pretrained: directory or hub name.
        method: a name, a preset or a composition; see `resolve_method`.
        batch_size: prompts per forward pass.
        max_batch_size: taken from the harness's command line; not used.
        device: where the model goes; ``cuda:0``, which the harness names by itself, may be missing.
        max_length: tokens of context and answer, instead of what the model's config says.
        trust_markers: take all document markers in contexts, not only those of `mark`.
        options: those that begin with ``method_`` are options of the method
            (``method=lpes,method_factors=1.2``); `_LOADING` are of
            `RagMiddleModel.from_pretrained`.

    Raises:
        ConfigError: another argument.
        As `RagMiddleModel.from_pretrained`.
    """

    def __init__(
        self,
        pretrained: str | RagMiddleModel,
        method: str = "none",
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        trust_markers: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        chosen = {
            name.removeprefix(_METHOD_PREFIX): options.pop(name)
            for name in list(options)
            if name.startswith(_METHOD_PREFIX)
        }
        unknown = [name for name in options if name not in _LOADING]
        if unknown:
            raise ConfigError(
                f"The model rag-middle takes no argument {unknown[0]!r}. It takes pretrained, "
                "method, method_<option>, batch_size, device, max_length, trust_markers, "
                f"{', '.join(_LOADING)}."
            )
        if not str(batch_size).isdecimal() or not int(batch_size):
            raise ConfigError(
                f"batch_size must be a whole number above 0 (there is no 'auto' here), got "
                f"{batch_size!r}."
            )
        if device == "cuda:0" and not torch.cuda.is_available():
            device = None  # the harness says so where nobody named a device
        window = int(max_length) if max_length else None
        if isinstance(pretrained, RagMiddleModel):
            self.reader = RagMiddleModel(
                pretrained.model,
                pretrained.tokenizer,
                method=method,
                method_options=chosen,
                context_window=window or pretrained.context_window,
                kernels=pretrained.kernels,
            )
        else:
            self.reader = RagMiddleModel.from_pretrained(
                pretrained,
                method=method,
                method_options=chosen,
                context_window=window,
                device=device,
                **options,
            )
        self.tokenizer = self.reader.tokenizer
        self._batch_size = int(batch_size)
        self._trust_markers = trust_markers
        self.max_length = self.reader.context_window or _DEFAULT_WINDOW

    # -- what the harness asks about the model --------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The end token; 0 where the tokenizer has none."""
        return int(self.tokenizer.eos_token_id or 0)

    @property
    def prefix_token_id(self) -> int:
        """What comes before a text that has no context."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids, with a BOS where the tokenizer writes one and the text has none yet."""
        begins = string.startswith(str(self.tokenizer.decode([self.prefix_token_id])))
        special = not begins if add_special_tokens is None else add_special_tokens
        return list(self.tokenizer.encode(string, add_special_tokens=special))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Messages as one text, by the tokenizer's template; without system ones it refuses."""
        messages = self._last_documents(chat_history)
        try:
            return self._templated(messages, add_generation_prompt)
        except TemplateError:
            others = [message for message in messages if message["role"] != "system"]
            if others == messages:
                raise
            warn_caller(
                ChatTemplateWarning(
                    "The chat template takes no system messages: they are left out."
                )
            )
            return self._templated(others, add_generation_prompt)

    def _last_documents(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """Documents of earlier turns (examples of a few-shot task) as text, as in conversations."""
        users = {i: m["content"] for i, m in enumerate(messages) if m["role"] == "user"}
        prompts = {index: self._parsed(content) for index, content in users.items()}
        earlier = [index for index, prompt in prompts.items() if prompt.documents][:-1]
        return [
            {**message, "content": prompts[index].text} if index in earlier else message
            for index, message in enumerate(messages)
        ]

    def _templated(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        text = self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return str(text)

    # -- scoring --------------------------------------------------------------------------------

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the greedy one."""
        # Spaces at the end of a context belong to what is scored, as in the harness.
        contexts = [request.args[0].rstrip() for request in requests]
        prompts = [self._parsed(context) for context in contexts]
        plain = [index for index, prompt in enumerate(prompts) if not prompt.documents]
        marked = [index for index, prompt in enumerate(prompts) if prompt.documents]
        plain_results = super().loglikelihood([requests[index] for index in plain], disable_tqdm)
        results = dict(zip(plain, plain_results, strict=True))
        scores = self.reader.score_batch(
            [prompts[index] for index in marked],
            ["".join(requests[index].args)[len(contexts[index]) :] for index in marked],
            max_batch_size=self._batch_size,
            **self._raw(),
        )
        for index, score in zip(marked, scores, strict=True):
            results[index] = (score.total, score.is_greedy)
        for index, request in enumerate(requests):
            self.cache_hook.add_partial("loglikelihood", request.args, results[index])
        return [results[index] for index in range(len(requests))]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        prompts, continuations = [], []
        for _args, context, continuation in requests:
            if len(continuation) > self.max_length:
                raise ConfigError(
                    f"A continuation of {len(continuation)} tokens leaves no room for context "
                    f"among {self.max_length}: raise max_length."
                )
            # As the harness's own model does: the start of what is too long is cut off.
            prompts.append(_tokenized(context[-(self.max_length + 1 - len(continuation)) :]))
            continuations.append(continuation)
        scores = self.reader.score_batch(
            prompts, continuations, max_batch_size=self._batch_size, on_missing_documents="ignore"
        )
        return [(score.total, score.is_greedy) for score in scores]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows."""
        totals = []
        for request in requests:
            windows = [
                (None, *utils.make_disjoint_window(window))
                for window in utils.get_rolling_token_windows(
                    # With a BOS, where the tokenizer writes one: the harness's numbers have it.
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length,
                    context_len=1,
                )
            ]
            total = sum(value for value, _ in self._loglikelihood_tokens(windows))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            totals.append(total)
        return totals

    # -- generating -----------------------------------------------------------------------------

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """A text for each context, up to the task's stop strings."""
        groups: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
        parsed = [self._parsed(request.args[0]) for request in requests]
        for index, (request, prompt) in enumerate(zip(requests, parsed, strict=True)):
            groups[repr(sorted(request.args[1].items())), bool(prompt.documents)].append(index)
        texts: dict[int, str] = {}
        for (_, marked), indices in groups.items():
            options = self._options(requests[indices[0]].args[1])
            room = self.max_length - options["max_new_tokens"]
            raw = self._raw() if marked else {"on_missing_documents": "ignore"}
            for start in range(0, len(indices), 8 * self._batch_size):
                chunk = indices[start : start + 8 * self._batch_size]
                prompts: list[ContextPrompt] | list[TokenizedPrompt] = (
                    [parsed[index] for index in chunk]
                    if marked
                    else [
                        _tokenized(self.tok_encode(requests[index].args[0])[-room:])
                        for index in chunk
                    ]
                )
                answers = self.reader.batch(
                    prompts, max_batch_size=self._batch_size, **raw, **options
                )
                for index, answer in zip(chunk, answers, strict=True):
                    texts[index] = answer.text
                    self.cache_hook.add_partial("generate_until", requests[index].args, answer.text)
        return [texts[index] for index in range(len(requests))]

    def _options(self, asked: dict[str, Any]) -> dict[str, Any]:
        asked = dict(asked)
        until = asked.pop("until", None) or []
        lengths = [asked.pop(name, None) for name in _LENGTHS]  # the first one counts
        new_tokens = int(next((n for n in lengths if n is not None), _DEFAULT_NEW_TOKENS))
        if new_tokens >= self.max_length:
            raise ConfigError(
                f"max_gen_toks={new_tokens} leaves no room for a prompt among {self.max_length} "
                "tokens: lower it, or raise max_length."
            )
        temperature = float(asked.pop("temperature", None) or 0)
        samples = bool(asked.pop("do_sample", temperature > 0))
        unknown = [name for name in asked if name not in _GENERATION]
        if unknown:
            raise ConfigError(
                f"The task asks for {unknown[0]!r} in generation_kwargs, which is not known here. "
                f"Known: until, do_sample, temperature, {', '.join((*_LENGTHS, *_GENERATION))}."
            )
        # The harness's own model goes by what the model's generation config says.
        own = self.reader.model.generation_config
        usual = {"top_k": _TOP_K} if samples else {}
        for name in ("repetition_penalty", "num_beams", *(_CHOICE if samples else ())):
            if (value := getattr(own, name, None)) is not None:
                usual[name] = value
        stops = [until] if isinstance(until, str) else list(until)
        if self.tokenizer.eos_token:  # whatever ends the model's generation config names
            stops.append(str(self.tokenizer.eos_token))
        return {
            "max_new_tokens": new_tokens,
            "stop": [stop for stop in stops if stop],
            **usual,
            **asked,
            "temperature": (temperature or 1.0) if samples else 0.0,
        }

    def _parsed(self, context: str) -> ContextPrompt:
        return parse(context, trusted=self._trust_markers)

    def _raw(self) -> dict[str, Any]:
        """Contexts are whole texts: a chat template, if wanted, has been applied to them."""
        return {
            "template": "raw",
            "allow_control_tokens": True,  # outside of documents only
            "on_overflow": "drop_documents",
            "on_missing_documents": "ignore",
        }


def _tokenized(ids: Sequence[int]) -> TokenizedPrompt:
    return TokenizedPrompt.assembled(prefix=ids, documents=(), suffix=(), document_ids=())


def main() -> None:
    """The harness's command, with the model ``rag-middle``."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
