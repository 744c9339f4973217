"""A diagnosis of models whose bias is known."""

import json
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from rag_middle.calibration import SEARCHES, LayerSearch, calibrate, draw_examples
from rag_middle.calibration.drawing import _OTHER_QUESTIONS
from rag_middle.errors import ConfigError
from rag_middle.evaluation import Diagnosis, Measurement, diagnose
from rag_middle.evaluation.conclusions import comparisons
from rag_middle.evaluation.diagnosis import (
    CALIBRATED,
    _able,
    collapse,
    default_methods,
    fitted_presets,
)
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.profiles import Profile, write_profile
from tests.conftest import FamilyModel
from tests.evaluation.fake_models import fake_reader
from tests.reader.questions import InventedDocuments
from tests.shipped_profiles import shipping

TASK = InventedDocuments(documents=10)
HOW = Measurement(limit=120, orders=3, controls=True)


def u_without_pine(method: str, at: int | None, documents: int) -> float:
    if at is None:
        return 0.0
    at_an_end = at in (0, documents - 1)
    return 0.9 if method == "pine" or at_an_end else 0.4


@pytest.fixture(scope="module")
def diagnosis(model: RagMiddleModel) -> Diagnosis:
    fake = fake_reader(model, TASK, u_without_pine)
    return diagnose(fake, TASK, ["pine", "ms_poe", "siw"], HOW)


def test_a_method_that_helps_is_found_with_its_cost(diagnosis: Diagnosis) -> None:
    assert diagnosis.recommendation.label == "pine"
    assert diagnosis.answer_time_ratios["pine"] == 1.0  # the fake's times are equal
    assert not [v for v in diagnosis.recommendation.verdicts if v.label == "ms_poe" and v.helps]
    data = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert data["recommendation"]["label"] == "pine"
    assert [curve["label"] for curve in data["curves"]["curves"]] == list(diagnosis.curves.labels)
    assert data["task"]["task"] == "invented_documents"
    assert {"rag-middle", "torch", "device"} <= set(data["software"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chance", "noted"),
    [
        (lambda at, d: 0.6 if d > 1 else 0.0, False),  # read among others only
        (lambda at, d: 0.3, True),  # what it knows, and nothing else
        (lambda at, d: 0.0, True),
    ],
    ids=["read", "known", "nothing"],
)
def test_a_document_counts_as_unused_only_where_none_helps(
    model: RagMiddleModel, chance: Callable[[int | None, int], float], noted: bool
) -> None:
    fake = fake_reader(model, TASK, lambda m, at, d: chance(at, d))
    diagnosis = diagnose(fake, TASK, [], replace(HOW, orders=0))
    assert any("does not use the document" in note for note in diagnosis.notes) == noted


def test_controls_and_flips_are_those_of_the_model(diagnosis: Diagnosis) -> None:
    controls = {control.name: control.mean.value for control in diagnosis.summary.controls}
    assert controls["closed_book"] == 0
    assert controls["gold_only"] == pytest.approx(0.9, abs=0.09)  # three standard deviations
    pine, none = (diagnosis.summary[label].consistency for label in ("pine", "none"))
    assert pine is not None
    assert none is not None
    assert pine.flip_rate.exact  # its chance is the same everywhere
    assert pine.changed.exact
    assert none.flip_rate.low > 0
    assert none.changed.value > none.flip_rate.value


def test_methods_the_model_cannot_take_are_left_out_with_the_reason(
    model: RagMiddleModel, family_model: FamilyModel
) -> None:
    gpt2 = RagMiddleModel(family_model("gpt2"), model.tokenizer, self_check=False)
    able, left_out = default_methods(gpt2)
    assert able == []
    assert "rotary" in left_out["pine"]
    assert default_methods(model) == (["pine", "rotor"], {})
    fitted, _ = _able(gpt2, CALIBRATED)
    assert "lpes" not in fitted
    assert "siw" in fitted


@pytest.mark.thorough
def test_where_nothing_helps_the_methods_that_can_be_fitted_are_named(
    model: RagMiddleModel,
) -> None:
    fake = fake_reader(
        model, TASK, lambda m, at, d: 0.9 if m == "none" and at in (0, d - 1) else 0.4
    )
    diagnosis = diagnose(fake, TASK, ["pine"], HOW)
    assert diagnosis.recommendation.reason == "no_help"
    [step] = [s for s in diagnosis.next_steps if "rag-middle calibrate --method" in s]
    assert all(name in step for name in SEARCHES)
    assert "--methods profile:rag-middle-calibration/positional_hidden_states.json" in step


def test_the_same_difference_has_the_same_interval_everywhere(diagnosis: Diagnosis) -> None:
    for verdict in diagnosis.recommendation.verdicts:
        shown = diagnosis.summary[verdict.label].difference
        assert shown is not None
        assert astuple(shown) == pytest.approx(astuple(verdict.mean_difference), abs=1e-9)
    assert "3 methods" in comparisons(diagnosis.results.compared)


def test_a_task_without_gold_documents_is_refused(model: RagMiddleModel) -> None:
    class NoGold(InventedDocuments):
        num_positions = 0  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"rag_middle\.evaluation\.run"):
        diagnose(model, NoGold())


SMALL = InventedDocuments(documents=4)


def profile_for(model: RagMiddleModel) -> Profile:
    return Profile(
        method="lpes",
        options={"factors": 1.2},
        model=model_facts(model.model, model.tokenizer),
        recommended=True,
    )


def test_settings_of_another_training_or_that_did_not_help_are_not(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    mine = profile_for(model)
    others = {
        "retrained": replace(mine, model=replace(mine.model, weights_sample="0" * 64)),
        "unknown": replace(mine, model=replace(mine.model, weights_sample=None)),
        "larger": replace(mine, model=replace(mine.model, layers=99)),
        "useless": replace(mine, recommended=False),
        "unchecked": replace(mine, recommended=None),
    }
    with shipping(tmp_path, others):
        assert fitted_presets(model) == ()


def test_a_diagnosis_tries_them_by_itself(model: RagMiddleModel, tmp_path: Path) -> None:
    fake = fake_reader(model, SMALL, lambda method, at, documents: 0.5)
    with shipping(tmp_path, {"reader": profile_for(model)}):
        diagnosis = diagnose(fake, SMALL, None, Measurement(limit=2), cost=False)
    assert "lpes:reader" in diagnosis.curves.labels
    assert "calibrate --method lpes" not in " ".join(diagnosis.next_steps)


@pytest.mark.thorough
def test_a_diagnosis_says_which_of_its_questions_a_method_was_fitted_to(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    examples, held_out = draw_examples(SMALL, "lpes", questions=6, held_out=4)
    search = LayerSearch(generations=0, population=2, parents=2, control_points=2)
    path = tmp_path / "lpes.json"
    fitted = calibrate(model, search, examples, held_out).profile
    write_profile(replace(fitted, recommended=True), path)

    def notes(seed: int) -> str:
        measurement = Measurement(limit=10, positions=2, seed=seed, max_new_tokens=2)
        return " ".join(diagnose(model, SMALL, [f"profile:{path}"], measurement, cost=False).notes)

    assert f"Parameters of profile:{path} were fitted to 6 of these 10 questions" in notes(
        _OTHER_QUESTIONS
    )
    assert "were fitted to" not in notes(0)  # a search asks other questions


@pytest.mark.parametrize(
    ("own", "drops"),
    [
        ((-9.0, -8.0, -22.0, -9.5, -8.0), True),  # one question is hard anyway
        ((-9.0, -8.0, -20.0, -3.0, -1.0), False),  # by chance, perhaps
        ((-4.0, -5.0, -22.0, -6.0, -4.0), False),  # worse, and not by much
    ],
)
def test_only_a_collapse_beyond_chance_counts(own: tuple[float, ...], drops: bool) -> None:
    base = (-2.0, -3.0, -21.0, -4.0, -2.0)
    assert (collapse(base, own) is not None) == drops


@pytest.mark.thorough
def test_a_method_under_which_right_answers_become_unlikely_is_dropped_and_named(
    model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def score_batch(prompts: Any, continuations: Any, method: Any = None, **options: Any) -> Any:
        total = -20.0 if method.name == "ms_poe" else -2.0
        scored = real(prompts, continuations, method=method, **options)
        return [replace(score, log_probabilities=(total,)) for score in scored]

    real = model.score_batch
    monkeypatch.setattr(RagMiddleModel, "score_batch", staticmethod(score_batch))
    how = Measurement(limit=6, positions=3)
    records = tmp_path / "answers.jsonl"
    for asked in (True, False):  # once
        diagnosis = diagnose(model, SMALL, ["siw", "ms_poe"], how, cost=False, records=records)
        assert [method.label for method in diagnosis.results.methods] == ["none", "siw"]
        assert diagnosis.left_out["ms_poe"].startswith("dropped after 5 questions")
        if asked:
            monkeypatch.setattr(RagMiddleModel, "score_batch", None)


def test_the_first_questions_are_not_asked_again_where_likelihood_is_the_score(
    model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scored: list[str] = []

    def score_batch(prompts: Any, *args: Any, **options: Any) -> Any:
        scored.extend(prompt.text for prompt in prompts)
        return real(prompts, *args, **options)

    real = model.score_batch
    monkeypatch.setattr(RagMiddleModel, "score_batch", staticmethod(score_batch))
    how = Measurement(limit=6, positions=3, scoring="likelihood", metric="log_likelihood")
    diagnose(model, SMALL, ["siw"], how, cost=False, records=tmp_path / "answers.jsonl")
    assert len(scored) == 2 * 6 * 3  # two methods
