"""One batch through the model: transformers generates, told how by a config of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from rag_middle.attention import applied
from rag_middle.generation.branches import Combined, FirstBranches, first_rows
from rag_middle.generation.document_cache import DocumentCache
from rag_middle.generation.effect import acts_on, method_name
from rag_middle.generation.facts import device_of, end_tokens, pad_token_id
from rag_middle.generation.options import GenerationOptions
from rag_middle.generation.own_config import blamed, own_stop_strings, request_config
from rag_middle.generation.prefill import begun, held
from rag_middle.generation.preparing import PreparedPrompt
from rag_middle.generation.results import Generation, Timings, Usage
from rag_middle.generation.sampling import Sampler
from rag_middle.generation.stopping import BeamStops, Progress
from rag_middle.generation.text import Completion
from rag_middle.generation.tokenizing import LockedTokenizer
from rag_middle.generation.turns import in_eval_mode, turn
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedBatch

__all__ = ["generate"]


def generate(
    model: PreTrainedModel,
    tokenizer: LockedTokenizer,
    prompts: Sequence[PreparedPrompt],
    method: Method,
    options: GenerationOptions,
    *,
    seeds: Sequence[int | None],
    stopped: threading.Event | None = None,
    on_text: Callable[[str], None] | None = None,
    documents: DocumentCache | None = None,
) -> list[Generation]:
    """Generate for all prompts together, left-padded, in one request to the model.

    Args:
        model: as it is; it is left so.
        tokenizer: of the model.
        prompts: in order.
        method: what the request runs under.
        options: how to generate.
        seeds: one per prompt, ``None`` where nothing is drawn.
        stopped: ends the generation when set, as ``options.cancel`` does.
        on_text: called with new text as it comes; for a single prompt.
        documents: read already.
    """
    options = replace(options, stop=(*options.stop_strings, *own_stop_strings(model)))
    cancels = [event for event in (options.cancel, stopped) if event is not None]

    def cancelled() -> bool:
        return any(event.is_set() for event in cancels)

    ends = end_tokens(model, tokenizer.tokenizer, options.stop_strings)
    completions = [Completion(tokenizer.decode, ends, options.stop_strings) for _ in prompts]
    progress = Progress(
        completions,
        live=options.num_beams == 1 and bool(options.stop or on_text),
        cancelled=cancelled,
        on_step=None if on_text is None else lambda: _pass_on(completions[0], on_text),
    )
    rows: list[list[int]] = [[] for _ in prompts]
    queued = perf_counter()
    with turn(model, cancelled) as ours:
        started = perf_counter()
        if ours and not cancelled():
            rows = _run(
                model, tokenizer, prompts, method, options, seeds, ends, progress, documents
            )
        ended = perf_counter()
    first = progress.first_token_at or ended
    if not progress.live:
        for completion, row in zip(completions, rows, strict=True):
            for token in row:
                completion.push(token)
    for completion in completions:
        full = len(completion.token_ids) >= options.max_new_tokens
        completion.finish("cancelled" if cancelled() and not full else "length")
    if on_text is not None:
        _pass_on(completions[0], on_text)
    timings = Timings(
        tokenize=0.0, wait=started - queued, prefill=first - started, decode=ended - first
    )
    return [
        _generation(prompt, completion, method, timings, seed)
        for completion, prompt, seed in zip(completions, prompts, seeds, strict=True)
    ]


def _generation(
    prompt: PreparedPrompt,
    completion: Completion,
    method: Method,
    timings: Timings,
    seed: int | None,
) -> Generation:
    return Generation(
        text=completion.text,
        token_ids=tuple(completion.token_ids),
        finish_reason=completion.finish_reason or "length",
        stop=completion.stop,
        usage=Usage(prompt_tokens=len(prompt.tokens), completion_tokens=len(completion.token_ids)),
        timings=replace(timings, tokenize=prompt.seconds),
        method=method_name(method),
        applied=acts_on(method, prompt.tokens.layout),
        documents=len(prompt.tokens.layout.documents),
        document_ids=prompt.tokens.document_ids,
        dropped_documents=prompt.dropped,
        seed=seed,
    )


def _pass_on(completion: Completion, on_text: Callable[[str], None]) -> None:
    text = completion.take()
    if text:
        on_text(text)


def _run(
    model: PreTrainedModel,
    tokenizer: LockedTokenizer,
    prompts: Sequence[PreparedPrompt],
    method: Method,
    options: GenerationOptions,
    seeds: Sequence[int | None],
    ends: Mapping[int, str | None],
    progress: Progress,
    documents: DocumentCache | None,
) -> list[list[int]]:
    """Generated tokens of every prompt, with whatever padding follows the end."""
    batch = TokenizedBatch(tuple(branch for prompt in prompts for branch in prompt.branches))
    branches = [len(prompt.branches) for prompt in prompts]
    pad = pad_token_id(model, tokenizer.tokenizer)
    ids, mask = batch.padded(pad, device=device_of(model))
    width = ids.shape[1]
    of_prompts = method.combines and options.num_beams == 1
    criteria: list[Any] = [FirstBranches(progress, branches) if of_prompts else progress]
    if options.num_beams > 1 and options.stop:
        criteria.append(BeamStops(tokenizer.decode, options.stop_strings, width))
    drawn = [seed for seed in seeds if seed is not None]
    processors = LogitsProcessorList()
    if options.samples:
        processors.append(
            Sampler(
                drawn,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
            )
        )
    if method.combines:
        processors = LogitsProcessorList(
            [Combined(method, branches, options.num_beams, list(processors))]
        )
    generate_tokens: Any = model.generate  # typed as a tensor: a module's attribute
    with in_eval_mode(model):
        cache = None
        if model.generation_config.cache_implementation is None:  # else transformers makes its own
            cache = begun(model, method, batch, documents=documents, beams=options.num_beams)
        given = {} if cache is None else {"past_key_values": cache}
        with applied(model, method, batch.prompts, prefilled=held(cache)):
            try:
                output = generate_tokens(
                    input_ids=ids,
                    attention_mask=mask,
                    generation_config=request_config(model, options, width, pad, ends),
                    logits_processor=processors,
                    stopping_criteria=StoppingCriteriaList(criteria),
                    **given,
                )
            except (TypeError, ValueError) as error:
                if progress.first_token_at is not None:
                    raise
                raise blamed(model, error) from error
    generated: list[list[int]] = output[first_rows(branches), width:].tolist()
    return generated
