"""Run golden cases and compare."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

import rag_middle
from rag_middle.attention import applied
from rag_middle.attention.seam import MODEL_CACHE
from rag_middle.errors import FileFormatError, UnknownNameError
from rag_middle.generation.loading import checked_backend
from rag_middle.generation.prompts import ModelRunner
from rag_middle.methods import PINE, Method
from rag_middle.registry import suggest
from rag_middle.tokens import TokenizedPrompt
from rag_middle.verify.cases import GoldenCase, RecordedRun, load_cases, shipped_directory
from rag_middle.verify.methods import GOLDEN_METHODS, method_for
from rag_middle.verify.report import CaseResult, Status, VerificationReport
from rag_middle.verify.search import SEARCH, search_difference

#: Largest absolute difference that passes. In float32, kernels and versions differ by up to about
#: 1e-4 on these models; a wrong position or mask moves logits by more than 1e-1.
TOLERANCE = 1e-3

#: Cases whose expected values document a mistake of the authors' code that nobody should repeat.
_SKIPPED_TAGS = {
    "reference_bug_sdpa_last_recompute_gt1": (
        "the authors' sdpa path gives every recomputed row the last position, a bug"
    ),
    "reference_bug_mistral_context_and_other_swapped": (
        "the authors' Mistral path sharpens the prompt instead of the documents, a bug"
    ),
}

AttnImplementation = Literal["sdpa", "eager"]


def verify(
    directory: str | Path | None = None,
    methods: Collection[str] | None = None,
    *,
    attn_implementation: AttnImplementation = "sdpa",
    tolerance: float = TOLERANCE,
    progress: Callable[[int, int, str], None] | None = None,
) -> VerificationReport:
    """Run golden cases through the public interface, in float32 on the CPU.

    Each case's prompt goes through the model at once, then its generated tokens one by one from
    the cache. Every recorded row of logits is compared.

    Args:
        directory: holds ``cases.json``, ``models/`` and ``arrays/``; None for the cases shipped
            with the package.
        methods: run only these methods' cases, by their names here or in ``cases.json``.
        attn_implementation: of the models.
        tolerance: largest absolute difference that passes.
        progress: called before each case with the number done, the number of all, and its id.

    Returns:
        One result per case. A case that raises has failed; one of a method that does not exist
        here is unknown, which counts as a failure; one that is known to record a mistake is
        skipped.

    Raises:
        FileFormatError: the directory is not of the expected format.
        UnknownNameError: there is no case of one of `methods`.
    """
    directory = shipped_directory() if directory is None else Path(directory)
    cases = _of_methods(load_cases(directory), methods, directory)
    load = cache(partial(_loaded, attn_implementation))
    results = []
    with _without_progress_bars():
        for done, case in enumerate(cases):
            if progress is not None:
                progress(done, len(cases), case.id)
            results.append(_result(case, load, tolerance))
    return VerificationReport(
        results=tuple(results),
        tolerance=tolerance,
        attn_implementation=attn_implementation,
        versions={
            "rag-middle": rag_middle.__version__,
            "transformers": transformers.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    )


def _name_here(case: GoldenCase) -> str:
    kind = GOLDEN_METHODS.get(case.method)
    return kind.name if kind else case.method


def _of_methods(
    cases: tuple[GoldenCase, ...], methods: Collection[str] | None, directory: Path
) -> tuple[GoldenCase, ...]:
    if methods is None:
        return cases
    present = dict.fromkeys(name for case in cases for name in (_name_here(case), case.method))
    for method in methods:
        if method not in present:
            raise UnknownNameError(
                f"{directory} has no case of a method {method!r}.{suggest(method, present)} "
                f"There are cases of: {', '.join(dict.fromkeys(map(_name_here, cases)))}."
            )
    return tuple(case for case in cases if {case.method, _name_here(case)} & set(methods))


def _result(
    case: GoldenCase, load: Callable[[Path], PreTrainedModel], tolerance: float
) -> CaseResult:
    def result(status: Status, reason: str = "", difference: float | None = None) -> CaseResult:
        name = _name_here(case)
        return CaseResult(
            id=case.id, method=name, status=status, difference=difference, reason=reason
        )

    for tag in sorted(case.tags & _SKIPPED_TAGS.keys()):
        return result("skipped", f"{tag}: {_SKIPPED_TAGS[tag]}")
    if case.method != SEARCH and case.method not in GOLDEN_METHODS:
        version = rag_middle.__version__
        return result("unknown", f"rag-middle {version} has no method for {case.method!r}")
    try:
        difference, mismatch = _compared(case, load)
    except FileFormatError:
        raise
    except Exception as error:  # whatever another version of a library does is the finding
        return result("failed", f"{type(error).__name__}: {error}")
    if mismatch:
        return result("failed", mismatch, difference)
    if not difference <= tolerance:  # a NaN fails
        reason = f"differs by {difference:.3g}, more than {tolerance:g}"
        return result("failed", reason, difference)
    return result("passed", difference=difference)


def _compared(case: GoldenCase, load: Callable[[Path], PreTrainedModel]) -> tuple[float, str]:
    """Largest absolute difference, and what else differs."""
    if case.method == SEARCH:
        return search_difference(case)
    method, recorded = method_for(case), case.recorded()
    model = load(recorded.model)
    run, mismatch = _arranged(case, method, model, recorded)
    if mismatch:
        return float("nan"), mismatch
    logits = _logits(model, method, run)
    expected = np.concatenate((run.prefill_logits, run.decode_logits))
    if logits.shape != expected.shape:
        raise case.malformed(f"its logits are {expected.shape}, its model gives {logits.shape}")
    return float(np.abs(logits - expected).max()), ""


def _arranged(
    case: GoldenCase, method: Method, model: PreTrainedModel, run: RecordedRun
) -> tuple[RecordedRun, str]:
    """The run in the method's order of documents, and how that differs from the recorded one.

    Prompts are recorded as they were given. What the method makes of one is compared with the order
    that was recorded, and the model then reads the prompt in that order.
    """
    if not method.arranges:
        return run, ""
    prompt = _prompt(run)
    sorts = "final_order" in case.fields
    # PINE's order only decides ties, and no case has one: the result must be the recorded one.
    expected = None if isinstance(method, PINE) else _recorded_order(case, sorts)
    if expected is not None and case.params.get("ordering") == "given":
        order = expected
    else:
        # Golden cases hold ids of tokens, and no tokenizer.
        runner = ModelRunner(model, None, method.name)  # type: ignore[arg-type]
        order = [int(index) for index in method.arrange(prompt, runner)]
    if expected is not None and order != expected:
        return run, f"orders documents {order}, recorded is {expected}"
    ordered = prompt.select(order)
    positions = run.positions
    if not sorts:  # rows were recorded at the tokens of the prompt as it was given
        moved = np.arange(len(prompt))  # where each token of the prompt is in the ordered one
        for index, (first, end) in zip(order, ordered.layout.documents, strict=True):
            moved[slice(*prompt.layout.documents[index])] = np.arange(first, end)
        positions = moved[positions]
    return replace(run, input_ids=ordered.input_ids, layout=ordered.layout, positions=positions), ""


def _recorded_order(case: GoldenCase, sorts: bool) -> list[int]:
    """From the first to the last document."""
    if sorts:
        return list(case.fields["final_order"])
    return list(case.params["global_ordering"])[::-1]  # it begins next to the question


def _prompt(run: RecordedRun) -> TokenizedPrompt:
    return TokenizedPrompt(
        input_ids=run.input_ids,
        layout=run.layout,
        document_ids=(None,) * len(run.layout.documents),
    )


@torch.no_grad()
def _logits(model: PreTrainedModel, method: Method, run: RecordedRun) -> NDArray[np.float32]:
    """``[P + m, vocabulary]``: the recorded prompt rows, then one row per fed token."""
    with applied(model, method, [_prompt(run)], prepared=True):
        output = model(input_ids=torch.tensor([run.input_ids], device="cpu"), use_cache=True)
        rows = [output.logits[0, torch.from_numpy(run.positions)]]
        for token in run.generated_tokens:
            output = model(
                input_ids=torch.tensor([[token]], device="cpu"),
                use_cache=True,
                **{MODEL_CACHE: output.get(MODEL_CACHE)},
            )
            rows.append(output.logits[0, -1:])
    logits: NDArray[np.float32] = torch.cat(rows).numpy()
    return logits


def _loaded(attn_implementation: str, path: Path) -> PreTrainedModel:
    """The model in a directory."""
    checked_backend(str(path))  # names no code of the hub
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        attn_implementation=attn_implementation,
        local_files_only=True,
        # Left out, transformers would offer to run code from the directory; or read pickles.
        trust_remote_code=False,
        use_safetensors=True,
    )
    model.eval()
    return model


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Of loading models, which are tiny here."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
