"""Search for settings of a method, check them on held-out prompts, and write a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import rag_middle
from rag_middle.calibration.cost import Estimate, estimate_cost
from rag_middle.calibration.examples import Example, digest
from rag_middle.calibration.objective import Criterion, ExampleObjective, Objective
from rag_middle.calibration.scoring import (
    Candidate,
    Evaluator,
    Journal,
    MakeTeam,
    ScoringProgress,
    Team,
    score_job,
)
from rag_middle.calibration.searches import make_search
from rag_middle.calibration.searches.base import Search, SearchInputs
from rag_middle.calibration.verdict import check_held_out, make_profile
from rag_middle.errors import ConfigError
from rag_middle.evaluation.runner import check_lengths
from rag_middle.files import expanded
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.generation.identity import generation_sha256
from rag_middle.methods import NoMethod
from rag_middle.profiles import Profile, write_profile
from rag_middle.tokens import TemplateName, uses_chat_template
from rag_middle.workers import InProcess, torch_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        profile: the best settings, whether they help or not; `Profile.recommended` says that.
        verdict: one sentence.
    """

    profile: Profile
    verdict: str


def calibrate(
    model: RagMiddleModel,
    search: Search | str,
    examples: Sequence[Example] = (),
    held_out: Sequence[Example] = (),
    *,
    objective: Objective | None = None,
    criterion: Criterion | None = None,
    workers: MakeTeam | None = None,
    seed: int = 0,
    threads_each: int = 1,
    max_batch_size: int = 8,
    template: TemplateName = "auto",
    state: str | Path | None = None,
    out: str | Path | None = None,
    data: Mapping[str, Any] | None = None,
    progress: ScoringProgress | None = None,
    estimated: Callable[[Estimate], None] | None = None,
) -> Calibration:
    """Search for settings that suit a model.

    The same model, examples, seed and number of threads give the same profile, bit for bit,
    whatever the workers, and also where the search was killed and started again.

    Args:
        model: to fit; left as it is found.
        search: what to try, or the method's name for its usual search.
        examples: that candidates are compared on.
        held_out: examples that the winner is checked on, every question once at each of the same
            positions; the search never sees them.
        objective: any function of a method, instead of the mean over `examples`; it runs in this
            process. Its scores have no intervals, so nothing is recommended. Give every objective
            a `state` of its own: a function cannot be told from another.
        criterion: what candidates are compared by; by default what suits search and model.
        workers: creates the workers that score examples; by default this process does.
        seed: of whatever is drawn.
        threads_each: of PyTorch, here and in every worker.
        max_batch_size: prompts per forward pass.
        template: as in generation; the workers must have the same one.
        state: file to continue from, written after every candidate.
        out: file for the profile.
        data: description of the examples, for the profile.
        progress: called after every score.
        estimated: called with the cost once, before the search begins; not for an objective of
            your own.

    Raises:
        ConfigError: neither examples nor an objective, an objective that returns
            something else than a finite number, a search that is not for this model, held-out
            questions that lack a position, or examples that do not fit the context window.
        FileFormatError: `state` is damaged, or belongs to another search.
        UnsupportedArchitectureError: the model cannot take the method.
        RagMiddleError: a worker process ended.
    """
    if isinstance(search, str):
        search = make_search(search)
    _check_examples(examples, held_out, objective, workers)
    chat = uses_chat_template(model.tokenizer, template)
    criterion = criterion or search.criterion_for(chat=chat)
    # Held-out answers are right or wrong, which likelihoods do not say.
    accuracy_criterion: Criterion = "generated_answer" if chat else "exact_match"
    held_out_criterion = accuracy_criterion if criterion == "log_likelihood" else criterion
    all_examples = (*examples, *held_out)
    check_lengths(
        model,
        [(e.question, e.prompt, len(model.token_ids(e.answer))) for e in all_examples],
        template=template,
    )
    packages = ("torch", "transformers", "tokenizers", "numpy")
    with torch_threads(threads_each):
        facts = model_facts(model.model, model.tokenizer)
        identity = {
            "search": search.to_dict(),
            "criterion": criterion if objective is None else "custom",
            "checked_by": held_out_criterion,
            "seed": seed,
            "model": {
                **asdict(facts),
                "generation": generation_sha256(model.model, model.tokenizer),
            },
            "data": {
                "search": _description(examples),
                "held_out": _description(held_out),
                **(data or {}),
            },
            "software": {
                "rag-middle": rag_middle.__version__,
                **{package: version(package) for package in packages},
            },
            "threads": threads_each,
            "batch": max_batch_size,
            "template": template,
        }
        max_candidates = search.max_candidates(model)  # refuses what does not fit
        journal = Journal(None if state is None else expanded(state), identity)
        if objective is not None:
            team: Team = InProcess(partial(score_job, objective))
        elif workers is not None:
            team = workers(all_examples, criterion)
        else:
            own = ExampleObjective(
                model,
                all_examples,
                criterion=criterion,
                max_batch_size=max_batch_size,
                template=template,
            )
            team = InProcess(partial(score_job, own))
        with closing(team):
            evaluator = Evaluator(team, journal, examples=len(examples), progress=progress)
            is_checked = objective is None and bool(held_out)
            evaluator.max_scores = 1 + max_candidates + (2 if is_checked else 0)
            if estimated and objective is None:
                estimated(
                    estimate_cost(
                        model,
                        search,
                        examples,
                        held_out,
                        team,
                        criterion=criterion,
                        held_out_criterion=held_out_criterion,
                        known=len(journal.outcomes),
                        max_batch_size=max_batch_size,
                    )
                )
            [before] = evaluator.outcomes([Candidate("none", NoMethod())])
            result = search.run(
                SearchInputs(
                    model=model,
                    examples=examples,
                    evaluator=evaluator,
                    seed=seed,
                    max_batch_size=max_batch_size,
                )
            )
            check = None
            if result.ranked and is_checked:
                best = result.ranked[0][0]
                outcomes = evaluator.held_out(
                    {"none": NoMethod(), best.key: best.method}, held_out_criterion
                )
                check = check_held_out(held_out, *outcomes, seed=seed)
    if result.ranked:
        model.checked_method(result.ranked[0][0].method)  # that it reaches the model
    profile = make_profile(identity, facts, before, result, check, evaluator.trace, examples)
    if out is not None:
        write_profile(profile, out)
    return Calibration(profile=profile, verdict=profile.note)


def _check_examples(
    examples: Sequence[Example],
    held_out: Sequence[Example],
    objective: Objective | None,
    workers: MakeTeam | None,
) -> None:
    asked = {e.question for e in examples} | set(map(_content, examples))
    shared = {e.question for e in held_out if not asked.isdisjoint((e.question, _content(e)))}
    if shared:
        raise ConfigError(
            f"{len(shared)} held-out questions are among those of the search ({min(shared)!r}): "
            "the check would say nothing. Hold out others."
        )
    questions, positions = {e.question for e in held_out}, {e.position for e in held_out}
    # A prompt that is missing would count as a wrong answer.
    if sorted((e.question, e.position) for e in held_out) != sorted(product(questions, positions)):
        raise ConfigError(
            f"{len(questions)} held-out questions at {len(positions)} positions need one prompt "
            f"each, {len(questions) * len(positions)} in all; got {len(held_out)}, some missing or "
            "there twice. Hold out every question at the same positions, as draw_examples does."
        )
    if objective is None and not examples:
        raise ConfigError("Give examples to compare candidates on, or an objective.")
    if objective is not None and workers is not None:
        raise ConfigError(
            "An objective of your own runs in this process: leave workers out, or spread the work "
            "in the objective."
        )


def _content(example: Example) -> tuple[str, str, frozenset[str]]:
    """What a question is made of, under any name and in any order of the documents."""
    prompt = example.prompt
    return prompt.prefix, prompt.suffix, frozenset(d.render() for d in prompt.documents)


def _description(examples: Sequence[Example]) -> dict[str, Any]:
    questions = len({example.question for example in examples})
    return {"questions": questions, "prompts": len(examples), "sha256": digest(examples)}
