"""Which of the shipped settings are for the model at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rag_middle.calibration import LayerSearch, calibrate, draw_examples
from rag_middle.evaluation import (
    Measurement,
    diagnose,
)
from rag_middle.evaluation.diagnosis import fitted_presets
from rag_middle.generation import RagMiddleModel, model_facts
from rag_middle.methods import resolve_method
from rag_middle.profiles import Profile, write_profile
from tests.evaluation.fake_models import fake_reader
from tests.reader.questions import InventedDocuments
from tests.shipped_profiles import shipping

TASK = InventedDocuments(documents=4)


def profile_for(model: RagMiddleModel) -> Profile:
    return Profile(
        method="lpes",
        options={"factors": 1.2},
        model=model_facts(model.model, model.tokenizer),
        recommended=True,
    )


def test_settings_fitted_to_this_model_are_found_and_work(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    assert fitted_presets(model) == ()
    with shipping(tmp_path, {"reader": profile_for(model)}):
        assert fitted_presets(model) == ("lpes:reader",)
        assert resolve_method("lpes:reader").factors == 1.2  # type: ignore[attr-defined]


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
    fake = fake_reader(model, TASK, lambda method, at, documents: 0.5)
    with shipping(tmp_path, {"reader": profile_for(model)}):
        diagnosis = diagnose(fake, TASK, None, Measurement(limit=2), cost=False)
    assert "lpes:reader" in diagnosis.curves.labels
    assert "calibrate --method lpes" not in " ".join(diagnosis.next_steps)


def test_a_diagnosis_says_which_of_its_questions_a_method_was_fitted_to(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    examples, held_out = draw_examples(TASK, "lpes", questions=6, held_out=4)
    search = LayerSearch(generations=0, population=2, parents=2, control_points=2)
    path = tmp_path / "lpes.json"
    fitted = calibrate(model, search, examples, held_out).profile
    write_profile(replace(fitted, recommended=True), path)

    def notes(seed: int) -> str:
        measurement = Measurement(limit=10, positions=2, seed=seed, max_new_tokens=2)
        return " ".join(diagnose(model, TASK, [f"profile:{path}"], measurement, cost=False).notes)

    assert f"Parameters of profile:{path} were fitted to 6 of these 10 questions" in notes(0)
    assert "were fitted to" not in notes(1)
