"""lm-evaluation-harness with this package's methods, over any of its tasks.

::

    python -m rag_middle_benchmarks.harness run --model rag-middle --tasks mmlu \\
        --model_args pretrained=Qwen/Qwen2.5-7B-Instruct,method=lpes,dtype=bfloat16

The harness finds models by name among those it has imported and has no plug-ins; this module
registers ``rag-middle`` and then is the harness's own command, with all its options. The plain
command ``lm_eval`` finds the model where ``lm_eval.yaml`` beside this file is among its tasks. From
Python, importing this module is enough: ``lm_eval.simple_evaluate(model="rag-middle", ...)``.

The model is the harness's ``hf`` with forward passes and generation of `RagMiddleModel`, so that
``method=none`` gives its numbers. Where a task marks documents in its contexts with
`rag_middle.mark`, methods that need documents have them. A template cannot call it, and can write
``[[rm:doc]]{{text}}[[/rm:doc]]`` instead: the argument ``trust_markers=true`` says that such
markers count, wherever in a context they come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from rag_middle.documents import ContextPrompt, parse
from rag_middle.errors import ConfigError, MissingExtraError
from rag_middle.generation import RagMiddleModel
from rag_middle.tokens import TokenizedPrompt

try:
    # The harness lists its own models only where it knows of none: before this one is registered.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "The lm-evaluation-harness adapter", package="lm-eval", extra="eval"
    ) from error

_METHOD_PREFIX = "method_"
_LOADING = ("dtype", "attn_implementation", "revision", "trust_remote_code")
#: What tasks may ask of generation besides ends and temperature, by the same names as here.
_SAMPLING = ("top_p", "top_k", "typical_p")
_GENERATION = (*_SAMPLING, "repetition_penalty", "no_repeat_ngram_size", "num_beams")
_TOP_K = 50  # of transformers, where nothing else is said


@register_model("rag-middle")
class RagMiddleLM(HFLM):  # type: ignore[misc]
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
        of_method = [name for name in options if name.startswith(_METHOD_PREFIX)]
        chosen = {name.removeprefix(_METHOD_PREFIX): options.pop(name) for name in of_method}
        unknown = [name for name in options if name not in _LOADING]
        if unknown or not str(batch_size).isdecimal():
            raise ConfigError(
                f"The model rag-middle takes no {unknown[0] if unknown else 'batch_size=auto'!r}. "
                "It takes pretrained, method, method_<option>, batch_size (a number), device, "
                f"max_length, trust_markers, {', '.join(_LOADING)}."
            )
        if device == "cuda:0" and not torch.cuda.is_available():
            device = None  # the harness says so where nobody named a device
        given: dict[str, Any] = {"method": method, "method_options": chosen}
        if isinstance(pretrained, RagMiddleModel):
            given |= {
                "context_window": max_length or pretrained.context_window,
                "kernels": pretrained.kernels,
            }
            self.reader = RagMiddleModel(pretrained.model, pretrained.tokenizer, **given)
        else:
            given |= {"context_window": max_length, "device": device, **options}
            self.reader = RagMiddleModel.from_pretrained(pretrained, **given)
        super().__init__(
            self.reader.model,
            tokenizer=self.reader.tokenizer,
            batch_size=int(batch_size),
            max_length=self.reader.context_window,
        )
        self._trust_markers = trust_markers

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Messages as one text; documents of earlier turns (few-shot examples) are plain text."""
        users = {i: m["content"] for i, m in enumerate(chat_history) if m["role"] == "user"}
        prompts = {index: self._parsed(content) for index, content in users.items()}
        earlier = [index for index, prompt in prompts.items() if prompt.documents][:-1]
        messages = [
            {**message, "content": prompts[index].text} if index in earlier else message
            for index, message in enumerate(chat_history)
        ]
        return str(super().apply_chat_template(messages, add_generation_prompt))

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
            max_batch_size=self.batch_size,
            **self._raw(),
        )
        for index, score in zip(marked, scores, strict=True):
            results[index] = (score.total, score.is_greedy)
            self.cache_hook.add_partial("loglikelihood", requests[index].args, results[index])
        return [results[index] for index in range(len(requests))]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], *_: Any, **__: Any
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
            prompts, continuations, max_batch_size=self.batch_size, on_missing_documents="ignore"
        )
        results = [(score.total, score.is_greedy) for score in scores]
        for (arguments, *_tokens), result in zip(requests, results, strict=True):
            if arguments is not None:  # else a window of a longer text
                self.cache_hook.add_partial("loglikelihood", arguments, result)
        return results

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
            for start in range(0, len(indices), 8 * self.batch_size):
                chunk = indices[start : start + 8 * self.batch_size]
                prompts: list[ContextPrompt] | list[TokenizedPrompt] = (
                    [parsed[index] for index in chunk]
                    if marked
                    else [
                        _tokenized(self.tok_encode(requests[index].args[0])[-room:])
                        for index in chunk
                    ]
                )
                answers = self.reader.batch(
                    prompts, max_batch_size=self.batch_size, **raw, **options
                )
                for index, answer in zip(chunk, answers, strict=True):
                    texts[index] = answer.text
                    self.cache_hook.add_partial("generate_until", requests[index].args, answer.text)
        return [texts[index] for index in range(len(requests))]

    def _options(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A task's options of generation by the names of `RagMiddleModel.batch`."""
        options = dict(normalize_gen_kwargs(asked, self.max_gen_toks))
        until, new_tokens = options.pop("until"), options.pop("max_gen_toks")
        samples, temperature = options.pop("do_sample"), options.pop("temperature", 0.0)
        if new_tokens >= self.max_length:
            raise ConfigError(
                f"max_gen_toks={new_tokens} leaves no room for a prompt among {self.max_length} "
                "tokens: lower it, or raise max_length."
            )
        if unknown := [name for name in options if name not in _GENERATION]:
            raise ConfigError(
                f"The task asks for {unknown[0]!r} in generation_kwargs, which is not known here. "
                f"Known: until, do_sample, temperature, max_gen_toks, {', '.join(_GENERATION)}."
            )
        # The harness's own model goes by what the model's generation config says.
        own = self.reader.model.generation_config
        usual = {"top_k": _TOP_K} if samples else {}
        for name in ("repetition_penalty", "num_beams", *(_SAMPLING if samples else ())):
            if (value := getattr(own, name, None)) is not None:
                usual[name] = value
        stops = handle_stop_sequences([stop for stop in until if stop], self.tokenizer.eos_token)
        return {
            "max_new_tokens": new_tokens,
            "stop": stops,  # whatever ends the model's generation config names
            **usual,
            **options,
            "temperature": (float(temperature) or 1.0) if samples else 0.0,
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
