"""The page of a calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rag_middle.calibration import Example
from rag_middle.calibration.report import (
    calibration_page,
    held_out_questions,
    write_calibration,
)
from rag_middle.documents import ContextPrompt, Document
from rag_middle.profiles import Profile, read_profile
from tests.reader import READER_PROFILE

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def profile() -> Profile:
    return read_profile(READER_PROFILE)


def examples() -> list[Example]:
    """Two questions, each at two positions among two documents."""
    made = []
    for question in ("first", "second"):
        for position in (0, 1):
            documents = [Document("Another <b>.", title="Other")]
            documents.insert(position, Document(f"The gold of {question}.", title="Gold"))
            made.append(
                Example(
                    question=question,
                    position=position,
                    prompt=ContextPrompt("", documents, f"Question: {question} <i>?\nAnswer:"),
                    answer=" yes",
                )
            )
    return made


def test_the_page_says_what_the_profile_says(profile: Profile, tmp_path: Path) -> None:
    path = write_calibration(profile, (), tmp_path / "lpes.html", command="again & again")
    page = path.read_text(encoding="utf-8")
    assert "Yes: the worst position gains significantly" in page
    assert profile.note.partition(":")[0] in page
    assert "again &amp; again" in page
    first = profile.scores["held_out"]["places"][0]
    assert f"{100 * first['before']['value']:.1f}<small>" in page
    assert page.count('class="chart"') == 2  # by position, and every candidate
    assert "default-src 'none'" in page


def test_a_result_that_is_not_recommended_is_not_praised(profile: Profile) -> None:
    page = calibration_page(replace(profile, recommended=False, note="No gain."))
    assert "No: not recommended." in page
    assert "Yes:" not in page
    unchecked = replace(profile, recommended=None, scores={"held_out": None}, search={})
    assert "Not known" in calibration_page(replace(unchecked, search={"criterion": "custom"}))


def test_a_gain_of_nothing_at_all_is_exact(profile: Profile) -> None:
    nothing = {"value": 0.0, "low": 0.0, "high": 0.0}
    held_out = {**profile.scores["held_out"], "gain_of_mean": nothing}
    page = calibration_page(replace(profile, scores={"held_out": held_out}))
    assert "0<small>none seen</small>" in page


def test_wrong_held_out_answers_can_be_opened(profile: Profile) -> None:
    # By example: the first question is right everywhere, the second at its first position only.
    wrong = held_out_questions(examples(), {"none": "1110", "lpes": "1110"})
    [question] = wrong
    assert "second" in question.question
    assert question.conditions == ("at 0", "at 1")
    assert [reply.right for reply in question.replies["lpes"]] == [True, False]
    assert [document.gold for document in question.documents] == [True, False]
    page = calibration_page(profile, wrong)
    assert "The gold of second." in page
    assert "Another &lt;b&gt;." in page
    assert "<b>.</div>" not in page
