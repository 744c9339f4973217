"""One batch through the model: transformers generates, told how by a config of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from rag_middle.attention import applied, in_eval_mode, input_device, turn
from rag_middle.generation.effect import acts_on, method_name
from rag_middle.generation.forward import cached_length, prefilled_cache
from rag_middle.generation.growing_cache import with_room
from rag_middle.generation.own_config import (
    end_tokens,
    explained,
    own_stop_strings,
    pad_token_id,
    request_config,
)
from rag_middle.generation.processors import (
    BeamStops,
    Combined,
    FirstBranches,
    Progress,
    Sampler,
    first_rows,
)
from rag_middle.generation.prompts import LockedTokenizer, PreparedPrompt
from rag_middle.generation.results import Generation, Timings, Usage
from rag_middle.generation.text import Completion
from rag_middle.methods import Method
from rag_middle.methods.parallel_context.document_cache import DocumentCache
from rag_middle.options import GenerationOptions
from rag_middle.tokens import TokenizedBatch

__all__ = ["GenerationRequest", "generate"]

#: Generated tokens that the cache has room for from the start; it grows by half for more.
_ROOM = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What one call to the model generates.

    Attributes:
        prompts: that go through the model together, left-padded.
        method: what the request runs under.
        options: how to generate.
        seeds: one per prompt, ``None`` where nothing is drawn.
        documents: keys and values computed for earlier requests.
        stopped: ends the generation when set, as ``options.cancel`` does.
        on_text: called with new text as it comes; for a single prompt.
    """

    prompts: Sequence[PreparedPrompt]
    method: Method
    options: GenerationOptions
    seeds: Sequence[int | None]
    documents: DocumentCache | None = None
    stopped: threading.Event | None = None
    on_text: Callable[[str], None] | None = None

    def is_cancelled(self) -> bool:
        """Whether somebody asked for an early end."""
        events = (self.options.cancel, self.stopped)
        return any(event is not None and event.is_set() for event in events)


def generate(
    model: PreTrainedModel, tokenizer: LockedTokenizer, request: GenerationRequest
) -> list[Generation]:
    """Generate for all prompts of the request; the model is used as it is, and left so.

    Returns:
        In the order of the prompts.
    """
    stops = (*request.options.stop_strings, *own_stop_strings(model))
    request = replace(request, options=replace(request.options, stop=stops))
    options, on_text = request.options, request.on_text
    ends = end_tokens(model, tokenizer.tokenizer, stops)
    completions = [Completion(tokenizer.decode, ends, stops) for _ in request.prompts]

    def emit() -> None:
        if on_text is not None and (text := completions[0].take()):
            on_text(text)

    progress = Progress(
        completions,
        live=options.num_beams == 1 and bool(stops or on_text),
        cancelled=request.is_cancelled,
        on_step=emit,
    )
    rows: list[list[int]] = [[] for _ in completions]
    kernels: Literal["triton", "torch"] = "torch"
    queued = perf_counter()
    with turn(model, request.is_cancelled) as taken:
        started = perf_counter()
        if taken and not request.is_cancelled():
            rows, kernels = _generated_tokens(model, tokenizer, request, ends, progress)
        ended = perf_counter()
    if not progress.live:
        for completion, row in zip(completions, rows, strict=True):
            for token in row:
                completion.push(token)
    for completion in completions:
        full = len(completion.token_ids) >= options.max_new_tokens
        completion.finish("cancelled" if request.is_cancelled() and not full else "length")
    emit()
    first = progress.first_token_at or ended
    return [
        Generation(
            text=completion.text,
            token_ids=tuple(completion.token_ids),
            finish_reason=completion.finish_reason or "length",
            stop=completion.stop,
            usage=Usage(
                prompt_tokens=len(prompt.tokens), completion_tokens=len(completion.token_ids)
            ),
            timings=Timings(
                tokenize=prompt.seconds,
                wait=started - queued,
                prefill=first - started,
                decode=ended - first,
            ),
            method=method_name(request.method),
            kernels=kernels,
            applied=acts_on(request.method, prompt.tokens.layout),
            documents=len(prompt.tokens.layout.documents),
            document_ids=prompt.tokens.document_ids,
            dropped_documents=prompt.dropped,
            seed=seed,
        )
        for completion, prompt, seed in zip(
            completions, request.prompts, request.seeds, strict=True
        )
    ]


def _generated_tokens(
    model: PreTrainedModel,
    tokenizer: LockedTokenizer,
    request: GenerationRequest,
    ends: Mapping[int, str | None],
    progress: Progress,
) -> tuple[list[list[int]], Literal["triton", "torch"]]:
    """Generated tokens of every prompt, with whatever padding follows the end, and by what."""
    method, options = request.method, request.options
    batch = TokenizedBatch(tuple(branch for p in request.prompts for branch in p.branches))
    branches = [len(prompt.branches) for prompt in request.prompts]
    pad = pad_token_id(model, tokenizer.tokenizer)
    ids, mask = batch.padded(pad, device=input_device(model))
    width = ids.shape[1]

    combines_rows = method.combines and options.num_beams == 1
    criteria: list[Any] = [FirstBranches(progress, branches) if combines_rows else progress]
    if options.num_beams > 1 and options.stop:
        criteria.append(BeamStops(tokenizer.decode, options.stop_strings, width))
    processors: list[LogitsProcessor] = []
    if options.samples:
        processors.append(
            Sampler(
                [seed for seed in request.seeds if seed is not None],
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
            )
        )
    if method.combines:
        processors = [Combined(method, branches, options.num_beams, processors)]

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
        with applied(model, method, batch.prompts, prefilled=prefilled) as running:
            try:
                output = untyped.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    generation_config=request_config(model, options, width, pad, ends),
                    logits_processor=LogitsProcessorList(processors),
                    stopping_criteria=StoppingCriteriaList(criteria),
                    **({} if cache is None else {"past_key_values": cache}),
                )
            except (TypeError, ValueError) as error:
                if progress.first_token_at is not None:
                    raise
                raise explained(model, error) from error
    tokens: list[list[int]] = output[first_rows(branches), width:].tolist()
    return tokens, running.kernels_used
