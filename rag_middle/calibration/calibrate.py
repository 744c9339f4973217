"""Search for settings of a method, check them on held-out prompts, and write a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from torch import Tensor

import rag_middle
from rag_middle.calibration.checks import require_whole
from rag_middle.calibration.estimating import Estimate, estimate, timed
from rag_middle.calibration.evaluator import Candidate, Evaluator, Progress
from rag_middle.calibration.examples import Example, digest, is_chat
from rag_middle.calibration.held_out import held_out_check
from rag_middle.calibration.journal import open_journal
from rag_middle.calibration.making_profile import made_profile
from rag_middle.calibration.objective import Criterion, ExampleObjective, Objective
from rag_middle.calibration.searches import Search, make_search
from rag_middle.calibration.workers import InProcess, Workers, threads
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import NoMethod
from rag_middle.profiles import Profile, write_profile

__all__ = ["Calibration", "calibrate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a calibration found.

    Attributes:
        profile: the best settings, whether they help or not; `Profile.recommended` says that.
        verdict: one sentence.
        hidden: mean hidden states `[layers, n, hidden]` of the channel search, for charts.
    """

    profile: Profile
    verdict: str
    hidden: Tensor | None = None


def calibrate(
    model: RagMiddleModel,
    search: Search | str,
    examples: Sequence[Example] = (),
    held_out: Sequence[Example] = (),
    *,
    objective: Objective | None = None,
    criterion: Criterion | None = None,
    workers: Callable[[Sequence[Example], Criterion], Workers] | None = None,
    seed: int = 0,
    threads_each: int = 1,
    max_batch_size: int = 8,
    template: Literal["auto", "chat", "raw"] = "auto",
    state: str | Path | None = None,
    out: str | Path | None = None,
    data: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    estimated: Callable[[Estimate], None] | None = None,
) -> Calibration:
    """Search for settings that suit a model.

    The same model, examples, seed and number of threads give the same profile, bit for bit,
    whatever the workers, and also where the search was killed and started again.

    Args:
        model: to fit; left as it is found.
        search: what to try, or the method's name for its usual search.
        examples: that candidates are compared on.
        held_out: that the winner is checked on, every question at the same places; the search
            never sees them.
        objective: any function of a method, instead of the mean over `examples`; it runs in this
            process. Its scores have no intervals, so nothing is recommended.
        criterion: what the mean is of; by default what suits the search and the model.
        workers: makes workers that score examples; by default this process does.
        seed: of whatever is drawn.
        threads_each: of PyTorch, here and in every worker.
        max_batch_size: prompts per forward pass.
        template: as in generation; workers are made with the same one.
        state: file to continue from, written after every candidate, or after several that share
            the model's reading of prompts.
        out: file for the profile.
        data: what the examples are, for the profile.
        progress: told after every candidate.
        estimated: told the cost once, before the search begins.

    Raises:
        CalibrationConfigError: neither examples nor an objective, or a search that is not for
            this model.
        CalibrationStateError: `state` is damaged, belongs to another search, or is in use.
        UnsupportedArchitectureError: the model cannot take the method.
        WorkerError: workers ended again and again.
    """
    chosen = make_search(search) if isinstance(search, str) else search
    require_whole(0, seed=seed)
    require_whole(1, threads_each=threads_each, max_batch_size=max_batch_size)
    _check(examples, held_out, objective, workers)
    chat = is_chat(model.tokenizer, template)
    by = criterion or chosen.criterion_for(chat=chat)
    # Held-out answers are right or wrong, which likelihoods do not say.
    verdicts: Criterion = "generated_answer" if chat else "exact_match"
    check_by = verdicts if by == "log_likelihood" else by
    every = (*examples, *held_out)
    how: dict[str, Any] = {"max_batch_size": max_batch_size, "template": template}
    with threads(threads_each):
        facts = model_facts(model.model, model.tokenizer)
        identity = {
            "search": chosen.to_dict(),
            "criterion": by if objective is None else "custom",
            "checked_by": check_by,
            "seed": seed,
            "model": asdict(facts),
            "data": {
                "search": _described(examples),
                "held_out": _described(held_out),
                **(data or {}),
            },
            "software": _software(),
            "threads": threads_each,
            "batch": max_batch_size,
            "template": template,
        }
        with open_journal(None if state is None else Path(state), identity) as journal:
            if objective is not None:
                team: Workers = InProcess(objective)
            elif workers is not None:
                team = workers(every, by)
            else:
                team = InProcess(ExampleObjective(model, every, criterion=by, **how))
            with closing(team):
                evaluator = Evaluator(
                    team,
                    journal,
                    examples=len(examples) if objective is None else None,
                    progress=progress,
                )
                evaluator.expected = 1 + chosen.most_candidates(model)  # refuses what does not fit
                known = "none" in journal
                if estimated and objective is None:
                    pace = None if known else timed(model, chosen, examples, by, **how)
                    estimated(
                        estimate(
                            model, chosen, examples, len(held_out), team.count, pace, by, chat=chat
                        )
                    )
                begun = perf_counter()
                [before] = evaluator.outcomes([Candidate("none", NoMethod())])
                if estimated and objective is not None:
                    count = evaluator.expected - 1
                    seconds = None if known else count * (perf_counter() - begun)
                    estimated(Estimate(candidates=count, questions=0, prompts=0, seconds=seconds))
                found = chosen.run(
                    model, examples, evaluator, seed=seed, max_batch_size=max_batch_size
                )
                best = found.ranked[0] if found.ranked else None
                checked = None
                if best is not None and objective is None and held_out:
                    methods = {"none": NoMethod(), best[0].key: best[0].method}
                    outcomes = evaluator.held_out(methods, len(every), check_by)
                    checked = held_out_check(held_out, *outcomes, seed=seed)
                trace = evaluator.trace
    if best:
        model.checked_method(best[0].method)  # that it reaches the model
    profile = made_profile(identity, facts, before, found, checked, trace)
    if out is not None:
        write_profile(profile, out)
    return Calibration(profile=profile, verdict=profile.note, hidden=found.hidden)


def _check(
    examples: Sequence[Example],
    held_out: Sequence[Example],
    objective: Objective | None,
    workers: Any,
) -> None:
    """Refuse what cannot be calibrated on."""
    if objective is None and not examples:
        raise CalibrationConfigError("Give examples to compare candidates on, or an objective.")
    if objective is not None and workers is not None:
        raise CalibrationConfigError(
            "An objective of your own runs in this process: leave workers out, or spread the work "
            "in the objective."
        )
    seen = {each.question for each in examples} & {each.question for each in held_out}
    if seen:
        raise CalibrationConfigError(
            f"{len(seen)} held-out questions are among those of the search ({min(seen)!r}): the "
            "check would say nothing. Hold out others."
        )


def _described(examples: Sequence[Example]) -> dict[str, Any]:
    questions = len({example.question for example in examples})
    return {"questions": questions, "prompts": len(examples), "sha256": digest(examples)}


def _software() -> dict[str, str]:
    packages = ("torch", "transformers", "tokenizers", "numpy")
    return {
        "rag-middle": rag_middle.__version__,
        **{package: version(package) for package in packages},
    }
