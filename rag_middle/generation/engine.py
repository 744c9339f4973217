"""One batch through the model: transformers generates, told how by a config of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from rag_middle.attention import Request, applied, in_eval_mode, input_device, turn, use_kernels
from rag_middle.generation.constrained import Constrained, Constraint
from rag_middle.generation.effect import acts_on
from rag_middle.generation.following import Follower, LogProbabilities
from rag_middle.generation.forward import cached_length, prefilled_cache
from rag_middle.generation.growing_cache import with_room
from rag_middle.generation.own_config import (
    end_tokens,
    no_repeat_ngram_size,
    own_stop_strings,
    pad_token_id,
    request_config,
)
from rag_middle.generation.processors import (
    BeamStops,
    Combined,
    FiniteCheck,
    FirstBranches,
    NoRepeatedNGrams,
    Progress,
    Sampler,
    ended,
    first_rows,
)
from rag_middle.generation.prompts import LockedTokenizer, PreparedPrompt
from rag_middle.generation.results import Generation, Timings, TokenLogProbability, Usage
from rag_middle.generation.text import Completion
from rag_middle.generation.tool_use import ToolReader
from rag_middle.methods import Method, method_name
from rag_middle.methods.parallel_context.document_cache import DocumentCache
from rag_middle.options import GenerationOptions, Kernels
from rag_middle.thinking import THINKING
from rag_middle.tokens import TokenizedBatch
from rag_middle.tools.checking import check_answer

#: Generated tokens that the cache has room for from the start; it grows by half for more.
_ROOM = 512
#: Tokens at a prompt's end in which thinking may begin: it, and line ends.
_LAST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What one call to the model generates.

    Attributes:
        prompts: that go through the model together, left-padded.
        method: what the request runs under.
        options: how to generate.
        seeds: one per prompt, ``None`` where nothing is drawn.
        documents: keys and values computed for earlier requests.
        followers: one per prompt, or none.
        kernels: what computes the method's attention.
        reader: of the calls of tools in the answers.
        constraint: that the answers keep to.
    """

    prompts: Sequence[PreparedPrompt]
    method: Method
    options: GenerationOptions
    seeds: Sequence[int | None]
    documents: DocumentCache | None = None
    followers: Sequence[Follower] = ()
    kernels: Kernels = "auto"
    reader: ToolReader | None = None
    constraint: Constraint | None = None

    def alternatives(self, index: int) -> int | None:
        """As of `GenerationOptions`, for a prompt: its follower may ask for others."""
        follower = self.followers[index] if self.followers else None
        asked = None if follower is None else follower.alternatives
        return self.options.alternatives if asked is None else asked

    def is_cancelled(self) -> bool:
        """Whether somebody asked for an early end of all prompts."""
        cancel = self.options.cancel
        return (cancel is not None and cancel.is_set()) or (
            bool(self.followers) and all(follower.cancel.is_set() for follower in self.followers)
        )


def ends_thinking(ids: Sequence[int], tokenizer: LockedTokenizer) -> bool:
    """Whether a prompt ends where the model's thinking begins, by its template's last words."""
    # With its control tokens: behind text that ends in these characters stands the turn's end.
    if not tokenizer.decode(ids[-_LAST:], hidden=frozenset()).rstrip().endswith(THINKING[0]):
        return False
    token = tokenizer.tokenizer.get_added_vocab().get(THINKING[0])
    return token is None or token in ids[-_LAST:]


def generate(
    model: PreTrainedModel, tokenizer: LockedTokenizer, request: GenerationRequest
) -> list[Generation]:
    """Generate for all prompts of the request; the model is used as it is, and left so.

    Returns:
        In the order of the prompts.
    """
    stops = (*request.options.stop, *own_stop_strings(model))
    before: Sequence[int] = ()
    if request.constraint is not None:
        stops = ()  # the end of the form is the end: what is cut before would be of no form
        before = tokenizer.continuation("a")  # a space at its beginning is of the form
    request = replace(request, options=replace(request.options, stop=stops))
    options = request.options
    ends = end_tokens(model, tokenizer.tokenizer, stops, options.eos_token_id)
    reader = request.reader
    decode = partial(tokenizer.decode, hidden=None if reader is None else reader.hidden)
    readers = [
        reader and replace(reader, thinking=ends_thinking(prompt.tokens.input_ids, tokenizer))
        for prompt in request.prompts
    ]
    run = _Run(request, [Completion(decode, ends, stops, calls, before) for calls in readers])
    progress = Progress(
        run.completions,
        live=options.num_beams == 1
        and bool(stops or request.followers or options.logprobs or request.constraint is not None),
        cancelled=request.is_cancelled,
        on_step=run.follow,
        check=run.finite.check,
    )
    run.progress = progress
    rows: list[list[int]] = [[] for _ in run.completions]
    with use_kernels(request.kernels), turn(model, request.is_cancelled) as taken:
        run.started = perf_counter()
        if taken and not request.is_cancelled():
            rows = _generated_tokens(model, tokenizer, run, ends, progress)
        run.ended = perf_counter()
    if not progress.live:
        for completion, row in zip(run.completions, rows, strict=True):
            for token in row:
                completion.push(token)
    for completion in run.completions:
        full = len(completion.token_ids) >= options.max_new_tokens
        completion.finish("cancelled" if request.is_cancelled() and not full else "length")
    run.tell_followers()
    generations = [run.generation(index) for index in range(len(request.prompts))]
    run.progress = None  # it holds the run: a cycle
    return generations


class _Run:
    """A batch on its way through the model, and who follows it.

    Args:
        request: to be served.
        completions: of its prompts.
    """

    def __init__(self, request: GenerationRequest, completions: list[Completion]) -> None:
        self.request = request
        self.completions = completions
        self.progress: Progress | None = None
        self.attention: Request | None = None
        self.queued = self.started = perf_counter()
        self.ended: float | None = None
        self.log_probabilities = LogProbabilities()
        self.finite = FiniteCheck(request.method)
        self._tokens: list[list[TokenLogProbability]] = [[] for _ in completions]
        self._reported = [0] * len(completions)
        self._results: dict[int, Generation] = {}

    def follow(self) -> None:
        """After each token: note how probable it was, end what is cancelled, tell followers."""
        for index, completion in enumerate(self.completions):
            alternatives, tokens = self.request.alternatives(index), self._tokens[index]
            if alternatives is not None and len(tokens) < len(completion.token_ids):
                tokens.append(
                    self.log_probabilities.of(index, completion.token_ids[-1], alternatives)
                )
        for index, follower in enumerate(self.request.followers):
            completion = self.completions[index]
            if index in self._results:
                continue
            full = len(completion.token_ids) >= self.request.options.max_new_tokens
            if follower.cancel.is_set() and not full:
                completion.finish("cancelled")
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
        """What a prompt has brought forth, once it has ended."""
        if index not in self._results:
            self._results[index] = self._generation(index)
        return self._results[index]

    def _generation(self, index: int) -> Generation:
        request, completion = self.request, self.completions[index]
        prompt, ended = request.prompts[index], self.ended or perf_counter()
        calls = completion.message.calls if completion.message else ()
        if completion.finish_reason == "stop" and not calls:
            check_answer(completion.answer, request.options.response_format)
        first = (self.progress and self.progress.first_token_at) or ended
        return Generation(
            text=completion.answer,
            tool_calls=calls,
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


def _generated_tokens(
    model: PreTrainedModel,
    tokenizer: LockedTokenizer,
    run: _Run,
    ends: Mapping[int, str | None],
    progress: Progress,
) -> list[list[int]]:
    """Generated tokens of every prompt, with whatever padding follows the end."""
    request = run.request
    method, options = request.method, request.options
    batch = TokenizedBatch(tuple(branch for p in request.prompts for branch in p.branches))
    branches = [len(prompt.branches) for prompt in request.prompts]
    pad = pad_token_id(model, tokenizer.tokenizer, options.pad_token_id)
    ids, mask = batch.padded(pad, device=input_device(model))
    width = ids.shape[1]

    combines_rows = method.combines and options.num_beams == 1
    criteria: list[Any] = [FirstBranches(progress, branches) if combines_rows else progress]
    if options.num_beams > 1 and options.stop:
        criteria.append(BeamStops(tokenizer.decode, options.stop, width))
    processors: list[LogitsProcessor] = [run.finite]
    if any(request.alternatives(index) is not None for index in range(len(request.prompts))):
        processors.append(run.log_probabilities)
    if ngram_size := no_repeat_ngram_size(model, options):
        rows = first_rows(branches) if method.combines else range(len(ids))
        paddings = [width - len(batch.prompts[row]) for row in rows]
        processors.append(NoRepeatedNGrams(ngram_size, paddings))
    if request.constraint is not None:
        constrained = Constrained(
            request.constraint, len(request.prompts), width, partial(ended, run.completions)
        )
        progress.complete = constrained.follow
        processors.append(constrained)
    if options.samples:
        processors.append(
            Sampler(
                [seed for seed in request.seeds if seed is not None],
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                typical_p=options.typical_p,
            )
        )
    if method.combines:
        processors = [run.finite, Combined(method, branches, options.num_beams, processors)]

    untyped: Any = model  # its methods are typed as tensors: a module's attributes
    with in_eval_mode(model):
        cache, prefilled = None, 0
        if model.generation_config.cache_implementation is None:  # else transformers makes its own
            cache = prefilled_cache(
                model, method, batch, documents=request.documents, beams=options.num_beams
            )
            prefilled = cached_length(cache)
            if options.num_beams == 1 and untyped._supports_default_dynamic_cache():
                # Beams are reordered at every token, which copies the cache anyway.
                cache = cache or DynamicCache(config=model.config.get_text_config(decoder=True))
                cache = with_room(cache, width + min(options.max_new_tokens, _ROOM))
        with applied(model, method, batch.prompts, prefilled=prefilled, prepared=True) as running:
            run.attention = running
            output = untyped.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=request_config(model, options, width, pad, ends),
                logits_processor=LogitsProcessorList(processors),
                stopping_criteria=StoppingCriteriaList(criteria),
                **({} if cache is None else {"past_key_values": cache}),
            )
    run.finite.check()
    tokens: list[list[int]] = output[first_rows(branches), width:].tolist()
    return tokens
