"""One batch through the model: transformers generates, told how by a config of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from rag_middle.attention import Request, applied, in_eval_mode, input_device, locked, use_kernels
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.generation.constrained import Constrained
from rag_middle.generation.effect import acts_on
from rag_middle.generation.growing_cache import with_room
from rag_middle.generation.own_config import (
    end_tokens,
    no_repeat_ngram_size,
    own_stop_strings,
    pad_token_id,
    request_config,
)
from rag_middle.generation.passes import cached_length
from rag_middle.generation.processors import (
    BeamStops,
    Combined,
    FiniteCheck,
    LogProbabilities,
    NoRepeatedNGrams,
    Sampler,
    first_rows,
)
from rag_middle.generation.prompts import LockedTokenizer
from rag_middle.generation.requests import GenerationRequest
from rag_middle.generation.results import (
    FinishReason,
    Generation,
    Timings,
    TokenLogProbability,
    Usage,
)
from rag_middle.generation.shared_prefixes import prefilled_cache
from rag_middle.generation.text import Completion
from rag_middle.methods import method_name
from rag_middle.thinking import THINKING
from rag_middle.tokens import padded

#: Generated tokens that the cache has room for from the start; it grows by half for more.
_ROOM = 512
#: Tokens at a prompt's end in which thinking may begin: it, and line ends.
_LAST = 8


def ends_thinking(ids: Sequence[int], tokenizer: LockedTokenizer) -> bool:
    """Whether a prompt ends where the model's thinking begins, by its template's last words."""
    # With its control tokens: after text that ends in these characters stands the turn's end.
    if not tokenizer.decode(ids[-_LAST:], hidden=frozenset()).rstrip().endswith(THINKING[0]):
        return False
    token = tokenizer.tokenizer.get_added_vocab().get(THINKING[0])
    return token is None or token in ids[-_LAST:]


def generate(
    model: PreTrainedModel, tokenizer: LockedTokenizer, request: GenerationRequest
) -> list[Generation]:
    """Generate for all prompts of the request, in order; the model is left as it is."""
    stops = (*request.options.stop, *own_stop_strings(model))
    before: Sequence[int] = ()
    if request.constraint is not None:
        stops = ()  # the grammar ends the text; a stop string would cut it before it is complete
        before = tokenizer.continuation("a")  # a space at its beginning is of the form
    request = replace(request, options=replace(request.options, stop=stops))
    ends = end_tokens(model, tokenizer.tokenizer, stops, request.options.eos_token_id)
    reader = request.reader
    decode = partial(tokenizer.decode, hidden=None if reader is None else reader.hidden)
    readers = [
        reader and replace(reader, thinking=ends_thinking(prompt.tokens.input_ids, tokenizer))
        for prompt in request.prompts
    ]
    run = _Run(request, [Completion(decode, ends, stops, calls, before) for calls in readers])
    rows: list[list[int]] = [[] for _ in run.completions]
    with use_kernels(request.kernels), locked(model, request.is_cancelled) as taken:
        run.started = perf_counter()
        if taken and not request.is_cancelled():
            rows = _generated_tokens(model, tokenizer, run, ends)
        run.ended = perf_counter()
    if not run.live:
        for completion, row in zip(run.completions, rows, strict=True):
            for token in row:
                completion.push(token)
    for completion in run.completions:
        run.finish(completion, "cancelled" if request.is_cancelled() else "length")
    run.tell_followers()
    return [run.generation(index) for index in range(len(request.prompts))]


class _Run(StoppingCriteria):
    """A batch on its way through the model: its texts, who follows them, and when they end.

    Reading tokens makes a GPU wait, so texts are followed as they grow only where somebody asks.
    """

    def __init__(self, request: GenerationRequest, completions: list[Completion]) -> None:
        options = request.options
        self.request = request
        self.completions = completions
        self.attention: Request | None = None
        self.queued = self.started = perf_counter()
        self.first_token_at: float | None = None
        self.ended: float | None = None
        self.log_probabilities = LogProbabilities()
        self.finite = FiniteCheck(request.method)
        self.constrained: Constrained | None = None
        asked = options.stop or request.followers or options.logprobs or request.constraint
        self.live = options.num_beams == 1 and bool(asked)
        self._branches = request.branches
        self._tokens: list[list[TokenLogProbability]] = [[] for _ in completions]
        self._reported = [0] * len(completions)
        self._results: dict[int, Generation] = {}

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which rows are done, boolean `[rows]`; `input_ids` are `[rows, n]`."""
        if self.live or self.first_token_at is None:
            tokens = input_ids[:, -1].tolist()  # the device may be behind: wait for the tokens
            self.first_token_at = self.first_token_at or perf_counter()
            self.finite.check()
        if self.live:
            first = first_rows(self._branches)
            for completion, row in zip(self.completions, first, strict=True):
                completion.push(tokens[row])
            if self.constrained is not None:
                complete = self.constrained.follow(input_ids[first])
                for completion, is_complete in zip(self.completions, complete, strict=True):
                    if is_complete:
                        completion.finish("stop")
            self._after_token()
        if self.request.is_cancelled():
            return input_ids.new_ones(len(input_ids), dtype=torch.bool)
        if not self.live:
            return input_ids.new_zeros(len(input_ids), dtype=torch.bool)
        counts = torch.tensor(self._branches, device=input_ids.device)
        return torch.tensor(self.have_ended(), device=input_ids.device).repeat_interleave(counts)

    def have_ended(self) -> list[bool]:
        """Which texts have."""
        return [completion.finish_reason is not None for completion in self.completions]

    def finish(self, completion: Completion, reason: FinishReason) -> None:
        """End a text that has not ended yet; one of the full length was not cancelled."""
        full = len(completion.token_ids) >= self.request.options.max_new_tokens
        completion.finish("length" if full else reason)

    def _after_token(self) -> None:
        """After each token: note how probable it was, end what is cancelled, tell followers."""
        alternatives = self.request.options.alternatives
        for index, completion in enumerate(self.completions):
            tokens = self._tokens[index]
            if alternatives is not None and len(tokens) < len(completion.token_ids):
                tokens.append(
                    self.log_probabilities.of(index, completion.token_ids[-1], alternatives)
                )
        for follower, completion in zip(self.request.followers, self.completions, strict=False):
            if follower.cancel.is_set():
                self.finish(completion, "cancelled")
        self.tell_followers()

    def tell_followers(self) -> None:
        """Hand on what is new."""
        for index, follower in enumerate(self.request.followers):
            if index in self._results:
                continue
            text = self.completions[index].take()
            tokens = self._tokens[index][self._reported[index] :]
            if text or (tokens and self.completions[index].finish_reason is not None):
                self._reported[index] += len(tokens)
                follower.on_text(text, tokens)
            if self.completions[index].finish_reason is not None:
                follower.on_end(self.generation(index))

    def generation(self, index: int) -> Generation:
        """A prompt's text and how it came about, once it has ended."""
        if index in self._results:
            return self._results[index]
        request, completion = self.request, self.completions[index]
        prompt, ended = request.prompts[index], self.ended or perf_counter()
        first = self.first_token_at or ended
        self._results[index] = Generation(
            text=completion.answer,
            tool_calls=completion.message.calls if completion.message else (),
            invalid_tool_calls=completion.message.invalid if completion.message else (),
            token_ids=tuple(completion.token_ids),
            finish_reason=completion.finish_reason or "length",
            stop=completion.stop,
            usage=Usage(
                prompt_tokens=len(prompt.tokens), completion_tokens=len(completion.token_ids)
            ),
            timings=Timings(
                tokenize=prompt.seconds,
                wait=self.started - self.queued,
                prefill=first - self.started,
                decode=ended - first,
            ),
            method=method_name(request.method),
            kernels="torch" if self.attention is None else self.attention.kernels_used,
            applied=acts_on(request.method, prompt.tokens.layout),
            documents=len(prompt.tokens.layout.documents),
            document_ids=prompt.tokens.document_ids,
            dropped_documents=prompt.dropped,
            seed=request.seeds[index],
            log_probabilities=tuple(self._tokens[index]),
        )
        return self._results[index]


def _generated_tokens(
    model: PreTrainedModel,
    tokenizer: LockedTokenizer,
    run: _Run,
    ends: Mapping[int, str | None],
) -> list[list[int]]:
    """Generated tokens of every prompt, with whatever padding follows the end."""
    request = run.request
    method, options = request.method, request.options
    rows, branches = request.rows, request.branches
    pad = pad_token_id(model, tokenizer.tokenizer, options.pad_token_id)
    ids, mask = padded(rows, pad, input_device(model))
    width = ids.shape[1]

    criteria: list[StoppingCriteria] = [run]
    if options.num_beams > 1 and options.stop:
        criteria.append(BeamStops(tokenizer.decode, options.stop, width))
    processors: list[LogitsProcessor] = [run.finite]
    if options.logprobs:
        processors.append(run.log_probabilities)
    if ngram_size := no_repeat_ngram_size(model, options):
        decided = first_rows(branches) if method.combines else range(len(ids))
        paddings = [width - len(rows[index]) for index in decided]
        processors.append(NoRepeatedNGrams(ngram_size, paddings))
    if request.constraint is not None:
        run.constrained = Constrained(
            request.constraint, len(request.prompts), width, run.have_ended
        )
        processors.append(run.constrained)
    if options.samples:
        processors.append(Sampler([seed for seed in request.seeds if seed is not None], options))
    if method.combines:
        processors = [run.finite, Combined(method, branches, options.num_beams, processors)]

    untyped: Any = model  # its methods are typed as tensors: a module's attributes
    with in_eval_mode(model):
        cache, prefilled = None, 0
        if model.generation_config.cache_implementation is None:  # else transformers makes its own
            cache = prefilled_cache(request.document_cache, model, method, rows, options.num_beams)
            prefilled = cached_length(cache)
            if options.num_beams == 1 and untyped._supports_default_dynamic_cache():
                # Beams are reordered at every token, which copies the cache anyway.
                cache = cache or DynamicCache(config=model.config.get_text_config(decoder=True))
                cache = with_room(cache, width + min(options.max_new_tokens, _ROOM))
        with applied(model, method, rows, prefilled=prefilled, prepared=True) as running:
            run.attention = running
            output = untyped.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=request_config(model, options, width, pad, ends),
                logits_processor=LogitsProcessorList(processors),
                stopping_criteria=StoppingCriteriaList(criteria),
                **({} if cache is None else {MODEL_CACHE: cache}),
            )
    run.finite.check()
    tokens: list[list[int]] = output[first_rows(branches), width:].tolist()
    return tokens
