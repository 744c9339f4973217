"""Search for settings of a method, check them on held-out prompts, and write a profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import rag_middle
from rag_middle.calibration.objective import Criterion, Example, ExampleObjective, Objective
from rag_middle.calibration.result import check_held_out, make_profile
from rag_middle.calibration.scoring import (
    HELD_OUT,
    MakeTeam,
    Outcomes,
    Scorer,
    ScoringJob,
    score_job,
)
from rag_middle.calibration.search import Candidate, Search, SearchInputs, drive
from rag_middle.calibration.searches import make_search
from rag_middle.errors import ConfigError
from rag_middle.evaluation.conditions import question_digest
from rag_middle.evaluation.runner import check_length
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.generation.identity import generation_sha256
from rag_middle.methods import Method, NoMethod
from rag_middle.profiles import Profile, write_profile
from rag_middle.tokens import TemplateName, uses_chat_template
from rag_middle.workers import Workers, torch_threads

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        profile: the best settings, whether they help or not; `Profile.recommended` says that.
        verdict: one sentence.
    """

    profile: Profile
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCost:
    """What a search will cost at most.

    Attributes:
        candidates: to score.
        criterion: that they are compared by.
        scores: in all, as `progress` counts them: of the unmodified model, of the candidates, and
            of the two methods on held-out questions.
        known: of these, which a search that was stopped has already.
        seconds: that are left, with the available workers.
    """

    candidates: int
    criterion: Criterion
    scores: int
    known: int
    seconds: float


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
    progress: Callable[[int, int], None] | None = None,
    estimated: Callable[[SearchCost], None] | None = None,
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
        progress: called after every score with how many there are, and will be at most.
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
    is_checked = objective is None and bool(held_out)
    all_examples = (*examples, *held_out)
    if all_examples:
        longest = max(all_examples, key=lambda example: len(example.prompt.text + example.answer))
        answer_tokens = len(model.token_ids(longest.answer))
        check_length(model, longest.prompt, answer_tokens, template=template)
    shape: dict[str, Any] = {"max_batch_size": max_batch_size, "template": template}
    with torch_threads(threads_each):
        facts = model_facts(model.model, model.tokenizer)
        # What is in the profile, too; a search that was killed is continued under the same.
        made_by = {
            "seed": seed,
            "software": {
                "rag-middle": rag_middle.__version__,
                **{package: version(package) for package in _PACKAGES},
            },
            "data": {
                "search": _description(examples),
                "held_out": _description(held_out),
                **(data or {}),
                "searched": sorted({question_digest(e.prompt, e.answers) for e in examples}),
            },
            "search": {
                "settings": search.to_dict(),
                "criterion": criterion if objective is None else "custom",
                "checked_by": held_out_criterion if is_checked else None,
                "threads": threads_each,
                **shape,
            },
        }
        generation = generation_sha256(model.model, model.tokenizer)
        identity = {**made_by, "model": {**asdict(facts), "generation": generation}}
        max_scores = 1 + search.max_candidates(model) + 2 * is_checked  # refuses what does not fit
        known = Outcomes(state, identity)
        if objective is None and workers is not None:
            team = workers(all_examples, criterion)
        else:
            own = objective or ExampleObjective(model, all_examples, criterion=criterion, **shape)
            team = Workers(partial(score_job, own))
        scorer = Scorer(team, known, len(examples), max_scores, progress)
        with closing(team):
            if estimated and objective is None:
                batch = min(max_batch_size, len(examples))
                criteria = (criterion, held_out_criterion)
                costly = search.costly_method(model)
                estimated(_estimate(scorer, costly, len(held_out), criteria, batch))
            unmodified = Candidate("none", NoMethod())
            [before] = scorer.searched([unmodified])
            inputs = SearchInputs(model=model, examples=examples, seed=seed, **shape)
            scored, details = drive(search.propose(inputs), scorer.searched)
            winner = max(scored, key=lambda pair: search.fitness(pair[1]), default=None)
            check = None
            if winner and is_checked:
                outcomes = scorer.held_out([unmodified, winner[0]], held_out_criterion)
                check = check_held_out(held_out, *outcomes)
    if winner:
        model.checked_method(winner[0].method)  # that it reaches the model
    trace = [
        {"candidate": candidate.key, **candidate.details, "score": outcome.score}
        for candidate, outcome in [(unmodified, before), *scored]
    ]
    profile = make_profile(made_by, facts, before, winner, check, {**details, "trace": trace})
    if out is not None:
        write_profile(profile, out)
    return Calibration(profile=profile, verdict=profile.note)


def _check_examples(
    examples: Sequence[Example],
    held_out: Sequence[Example],
    objective: Objective | None,
    workers: MakeTeam | None,
) -> None:
    searched = {question_digest(e.prompt, e.answers) for e in examples}
    shared = {e.question for e in held_out if question_digest(e.prompt, e.answers) in searched}
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


def _description(examples: Sequence[Example]) -> dict[str, Any]:
    questions = len({example.question for example in examples})
    digest = sha256(repr(examples).encode()).hexdigest()
    return {"questions": questions, "prompts": len(examples), "sha256": digest}


def _estimate(
    scorer: Scorer, costly: Method, held_out: int, criteria: tuple[Criterion, Criterion], batch: int
) -> SearchCost:
    """Time a batch on every worker of the team at once, as in the search, and multiply.

    Scores that are in the journal need no more time.

    Args:
        costly: a candidate that takes as long as any.
        held_out: how many held-out examples there are.
        criteria: of the search, and of the check on held-out examples.
        batch: prompts that are timed.
    """
    team, known = scorer.team, scorer.outcomes
    checks = 2 if held_out else 0
    checked = sum(key.startswith(HELD_OUT) for key in known)
    # Held-out prompts are asked once the search has ended.
    left = 0 if checked else max(0, scorer.max_scores - checks - len(known))

    def seconds(criterion: Criterion, prompts: int = batch) -> float:
        """Seconds that one worker takes for a prompt while all of them work."""
        jobs = [ScoringJob(method=costly, stop=prompts, criterion=criterion)] * team.count
        start = time.perf_counter()
        list(team.results(jobs))
        return (time.perf_counter() - start) / prompts

    seconds(criteria[0], prompts=1)  # not for the time: workers load the model
    a_prompt, of_held_out = seconds(criteria[0]), 0.0
    if checks > checked:
        of_held_out = a_prompt if criteria[1] == criteria[0] else seconds(criteria[1])
    return SearchCost(
        candidates=scorer.max_scores - checks - 1,
        criterion=criteria[0],
        scores=scorer.max_scores,
        known=len(known),
        seconds=(
            left * scorer.examples * a_prompt / team.count
            + (checks - checked) * held_out * of_held_out / min(team.count, 2)
        ),
    )
