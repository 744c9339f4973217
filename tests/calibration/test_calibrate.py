"""From a model and examples to a profile, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from rag_middle.calibration import (
    Calibration,
    Example,
    ExampleObjective,
    LayerSearch,
    Outcome,
    SearchCost,
    calibrate,
    make_search,
)
from rag_middle.calibration.scoring import ScoringJob, score_job
from rag_middle.errors import ConfigError, FileFormatError
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import LPES, Method, NoMethod, resolve_method
from rag_middle.methods.resolve import as_option
from rag_middle.profiles import read_profile
from rag_middle.workers import Workers
from tests.adapters import adapted_llama
from tests.tokenizers import CHATML, byte_level_bpe

pytestmark = pytest.mark.thorough

Examples = Callable[..., list[Example]]
SMALL = LayerSearch(population=5, parents=3, mutants=3, crossovers=1, generations=2)
#: Two candidates.
TINY = LayerSearch(population=2, parents=2, generations=0, control_points=2)
EVERY: list[tuple[str, dict[str, Any]]] = [
    ("lpes", {"population": 4, "parents": 2, "mutants": 2, "crossovers": 1, "generations": 1}),
    ("positional_hidden_states", {"texts": 16, "tokens": 100, "top": 1, "factors": (-1.0,)}),
    ("siw", {"dense": (0.5,), "sparse": (1.5,)}),
    ("ms_poe", {"ranges": ((1.0, 1.4),), "first_layers": (0,)}),
    ("zero_tuning", {"shares": (0.3,), "factors": (0.5,)}),
    ("self_extend", {"groups": (2,), "windows": (8,)}),
    ("dysco", {"counts": (2,), "strengths": (3.0,), "top_ks": (16,)}),
]


@pytest.mark.parametrize(("method", "options"), EVERY, ids=[name for name, _ in EVERY])
@pytest.mark.one_in(4)
def test_every_search_ends_in_a_profile_that_works(
    method: str,
    options: dict[str, Any],
    model: RagMiddleModel,
    examples: Examples,
    tmp_path: Path,
) -> None:
    path = tmp_path / "profile.json"
    made, held_out = examples(6), examples(6, start=50)
    calibration = calibrate(model, make_search(method, options), made, held_out, seed=4, out=path)
    profile = read_profile(path)
    assert profile == calibration.profile
    assert (profile.method, profile.seed, profile.origin) == (method, 4, "measured")
    assert profile.model == model_facts(model.model, model.tokenizer)
    assert (profile.data["search"]["questions"], profile.data["search"]["prompts"]) == (2, 6)
    assert [row["place"] for row in profile.scores["held_out"]["places"]] == [0, 2, 4]
    assert profile.recommended in (True, False)
    assert resolve_method(f"profile:{path}").provenance is not None
    winner = resolve_method(profile.method, as_option(profile.options))
    objective = ExampleObjective(model, made, criterion=profile.search["criterion"])
    assert objective(winner) == profile.scores["search"]["after"]["score"]
    best = max(entry["score"] for entry in profile.search["trace"][1:])
    assert best == profile.scores["search"]["after"]["score"]
    assert profile.search["trace"][0]["candidate"] == "none"


def test_it_finds_what_there_is_to_find(model: RagMiddleModel) -> None:
    def objective(method: Method) -> float:
        factors = method.factors if isinstance(method, LPES) else (1.0,) * 4
        assert isinstance(factors, tuple)
        wanted = (1.2, 1.3, 1.6, 1.7)
        return -sum(abs(one - other) for one, other in zip(factors, wanted, strict=True))

    search = LayerSearch(curve="linear", generations=15)
    calibration = calibrate(model, search, objective=objective)
    assert calibration.profile.options == {"factors": [1.2, 1.3, 1.6, 1.7]}
    assert calibration.profile.recommended is None
    assert "Not checked on held-out prompts" in calibration.verdict


def test_a_search_is_not_continued_under_another_adapter(tmp_path: Path) -> None:
    tokenizer = byte_level_bpe()
    network, layer = adapted_llama(vocab_size=len(tokenizer), num_hidden_layers=4)
    model, state = RagMiddleModel(network, tokenizer, self_check=False), tmp_path / "s.state"
    first = calibrate(model, SMALL, objective=lambda _: 0.5, state=state)
    layer._active_adapter = ["b"]
    with pytest.raises(FileFormatError, match=r"model\.adapters"):
        calibrate(model, SMALL, objective=lambda _: 0.5, state=state)
    layer._active_adapter = ["a"]
    assert calibrate(model, SMALL, objective=lambda _: 0.5, state=state).profile == first.profile


@pytest.mark.parametrize("score", [float("nan"), -float("inf")])
def test_a_score_that_is_no_finite_number_is_refused_at_once(
    model: RagMiddleModel, tmp_path: Path, score: Any
) -> None:
    state, calls = tmp_path / "s.state", []

    def objective(method: Method) -> float:
        calls.append(method)
        return score if len(calls) == 3 else 0.5

    with pytest.raises(ConfigError, match=r"The objective returned .* for LPES"):
        calibrate(model, SMALL, objective=objective, state=state)
    assert len(calls) == 3
    calibrate(model, SMALL, objective=objective, state=state)  # the state takes no harm


def test_what_does_not_help_is_not_recommended(model: RagMiddleModel, examples: Examples) -> None:
    # The random model's own answers are among the right ones: any change can only lose them.
    calibration = calibrate(model, TINY, examples(9), examples(9, start=50))
    assert calibration.profile.recommended is False
    assert "No candidate scores higher than the unmodified model" in calibration.verdict
    assert "is not statistically significant" in calibration.profile.note


@pytest.mark.slow
def test_what_helps_is_recommended(model: RagMiddleModel, examples: Examples) -> None:
    # The answers are those that the model writes under one setting of Ms-PoE.
    made = _answered_under(model, {"max_ratio": 1.4}, examples(36), examples(90, start=50))
    options = {"ranges": ((1.0, 1.4), (1.0, 2.0)), "first_layers": (0,), "head_rules": ("rank",)}
    calibration = calibrate(model, make_search("ms_poe", options), *made, criterion="exact_match")
    assert calibration.profile.options == {"min_ratio": 1.0, "max_ratio": 1.4, "first_layer": 0}
    assert calibration.profile.recommended is True
    assert calibration.profile.scores["held_out"]["gain_of_worst_place"]["low"] > 0


def _answered_under(
    model: RagMiddleModel, options: dict[str, Any], *sets: Sequence[Example]
) -> list[list[Example]]:
    how = {"min_ratio": 1.0, "first_layer": 0, **options}
    return [
        [
            replace(
                example,
                answer=model.generate(
                    example.prompt, method="ms_poe", method_options=how, max_new_tokens=2
                ).text
                or " the",
            )
            for example in examples
        ]
        for examples in sets
    ]


class KilledError(Exception):
    """Stands in for a signal."""


class Mortal(Workers[ScoringJob, Outcome]):
    """Is killed after so many outcomes."""

    def __init__(self, objective: ExampleObjective, lives: int) -> None:
        super().__init__(partial(score_job, objective))
        self.lives = lives

    def results(self, tasks: Sequence[ScoringJob]) -> Iterator[tuple[int, Any]]:
        for scored in super().results(tasks):
            self.lives -= 1
            if self.lives < 0:
                raise KilledError
            yield scored


@pytest.mark.slow
def test_killed_anywhere_and_started_again_gives_the_same_profile(
    model: RagMiddleModel, examples: Examples, tmp_path: Path
) -> None:
    made, held_out = examples(8), examples(6, start=50)

    def run(folder: Path, lives: int) -> Calibration:
        return calibrate(
            model,
            SMALL,
            made,
            held_out,
            seed=7,
            workers=lambda all_of, by: Mortal(ExampleObjective(model, all_of, criterion=by), lives),
            state=folder / "s.state",
            out=folder / "p.json",
        )

    run(tmp_path / "whole", 10_000)
    whole = (tmp_path / "whole" / "p.json").read_bytes()
    attempts = 0
    while not (tmp_path / "killed" / "p.json").exists():
        attempts += 1
        try:
            run(tmp_path / "killed", 3)
        except KilledError:
            continue
    assert attempts > 3
    assert (tmp_path / "killed" / "p.json").read_bytes() == whole
    # Nothing is scored when it is already known.
    assert run(tmp_path / "killed", 0).profile == read_profile(tmp_path / "whole" / "p.json")


def test_other_examples_do_not_continue_a_search(
    model: RagMiddleModel, examples: Examples, tmp_path: Path
) -> None:
    state, out = tmp_path / "s.state", tmp_path / "p.json"
    calibrate(model, TINY, examples(4), state=state, out=out)
    assert str(tmp_path) not in out.read_text(encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"data\.search\.prompts is 4 there and 5"):
        calibrate(model, TINY, examples(5), state=state)
    with pytest.raises(FileFormatError, match="seed is 0 there and 1"):
        calibrate(model, TINY, examples(4), state=state, seed=1)


def test_the_cost_is_told_before_and_progress_on_the_way(
    model: RagMiddleModel, examples: Examples
) -> None:
    calls: list[Any] = []
    calibrate(
        model,
        SMALL,
        examples(4),
        examples(3, start=50),
        estimated=calls.append,
        progress=lambda done, total: calls.append((done, total)),
    )
    [cost] = [entry for entry in calls if isinstance(entry, SearchCost)]
    assert cost.candidates == SMALL.max_candidates(model) == 5 + 2 * (3 + 2)
    assert (cost.known, cost.scores) == (0, 1 + cost.candidates + 2)
    steps = [entry for entry in calls[calls.index(cost) :] if isinstance(entry, tuple)]
    assert all(done <= total for done, total in steps)
    assert steps[0] == (0, cost.scores)
    assert steps[-1][0] == steps[-3][0] + 2  # the held-out check is waited for, too


def test_prompts_are_written_as_they_are_asked_for(
    model: RagMiddleModel, examples: Examples
) -> None:
    chatting = RagMiddleModel(model.model, byte_level_bpe(bos=True, chat_template=CHATML))
    made = examples(4)
    scores = {}
    templates: tuple[Literal["auto", "raw"], ...] = ("auto", "raw")
    for template in templates:
        calibration = calibrate(chatting, TINY, made, criterion="log_likelihood", template=template)
        scores[template] = calibration.profile.scores["search"]["before"]["score"]
        objective = ExampleObjective(chatting, made, criterion="log_likelihood", template=template)
        assert scores[template] == objective(NoMethod())
        assert calibration.profile.search["template"] == template
    assert scores["auto"] != scores["raw"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": []}, "Give examples"),
        ({"held_out": "same"}, "held-out questions are among those of the search"),
        ({"held_out": "renamed"}, "held-out questions are among those of the search"),
        ({"held_out": "cut"}, r"2 held-out questions at 3 positions .* 6 in all; got 5"),
        ({"objective": lambda method: 0.0, "workers": lambda a, b: None}, "runs in this process"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    arguments: dict[str, Any], message: str, model: RagMiddleModel, examples: Examples
) -> None:
    made = examples(4)
    given = {"examples": made, **arguments}
    if given.get("held_out") == "same":
        given["held_out"] = made
    elif given.get("held_out") == "renamed":
        given["held_out"] = [replace(e, question=f"again {e.question}") for e in made]
    elif "held_out" in given:
        whole = examples(6, start=50)
        given["held_out"] = whole[:-1]
    with pytest.raises(ConfigError, match=message):
        calibrate(model, SMALL, **given)
