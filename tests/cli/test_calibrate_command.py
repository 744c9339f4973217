"""``rag-middle calibrate``."""

from pathlib import Path
from typing import Any, get_args

import pytest

from rag_middle.calibration import PRESETS, SEARCHES
from rag_middle.cli.calibrate import Fitted
from rag_middle.evaluation.diagnosis import CALIBRATED
from tests.cli.conftest import Finished, Run
from tests.reader.questions import write_lines

pytestmark = pytest.mark.thorough

#: Options of small searches; the others are run in tests/calibration.
SMALL = {
    "lpes": [
        *("population=4", "parents=2", "mutants=2", "crossovers=1", "generations=1"),
        *("control_points=3", "curve=linear"),
    ],
    "ms_poe": ["ranges=[[1.0,1.5]]", "first_layers=[0]"],
}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Twelve questions of one's own, with three distractors each."""
    lines = [
        {
            "question": f"Which number has box {n}?",
            "answers": [str(n * 7)],
            "gold": f"Box {n} has the number {n * 7}.",
            "distractors": [f"Bag {n} has the number {n * k}." for k in (2, 3, 5)],
        }
        for n in range(1, 13)
    ]
    return write_lines(tmp_path / "questions.jsonl", *lines)


@pytest.fixture
def calibrate(run: Run, model: Path, questions: Path, tmp_path: Path) -> Any:
    def invoke(method: str, *more: object, out: str = "out") -> Finished:
        named = {str(each).partition("=")[0] for each in more}  # replaces these
        usual = [each for each in SMALL[method] if each.partition("=")[0] not in named]
        options = [each for option in usual for each in ("-s", option)]
        return run(
            *("calibrate", "--method", method, "--model", model, "--data", questions),
            *("--questions", 8, "--held-out", 4, "--workers", 1, "--out", tmp_path / out),
            *options,
            *more,
        )

    return invoke


@pytest.mark.filterwarnings("default")  # shown on standard error, as to people
def test_the_profile_can_be_used(calibrate: Any, run: Run, model: Path, prompt_file: Path) -> None:
    found = calibrate("ms_poe", "--json")
    assert found.status == 0, found.err
    told = found.json
    assert told["method"] == "ms_poe"
    # A random model has nothing to gain: every answer is wrong before and after.
    assert told["recommended"] is False
    assert "These settings are not recommended" in told["verdict"]
    used = run(
        *("generate", "--model", model, "--method", f"profile:{told['profile']}"),
        *("--prompt", prompt_file, "--max-new-tokens", 2, "--json"),
    )
    assert used.status == 0, used.err
    assert used.json["method"] == f"profile:{told['profile']}"
    assert "did not beat the unmodified model" in used.err


def test_the_command_has_every_search() -> None:
    assert {*get_args(Fitted)} == {*SEARCHES, *PRESETS}
    assert tuple(CALIBRATED) == tuple(SEARCHES)  # which a diagnosis names


def test_people_are_told_places_verdict_and_cost(calibrate: Any, tmp_path: Path) -> None:
    shown = calibrate("ms_poe")
    assert "at most 2 candidates, compared by log_likelihood" in shown.err
    assert "held-out accuracy" in shown.out
    assert "These settings are not recommended" in " ".join(shown.out.split())
    assert shown.out.splitlines()[-1] == str(tmp_path / "out" / "ms_poe.json")
    page = (tmp_path / "out" / "ms_poe.html").read_text(encoding="utf-8")
    assert "No: not recommended." in page
    refused = calibrate("ms_poe", "--seed", 3)  # another search in the same folder
    assert refused.status == 2
    assert "seed is 0 there and 3 in this run" in refused.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-s", "speed=3"], "no option 'speed'"),
        (["-s", "control_points=4"], "4 control points need as many layers"),
        (["--weights", "a,b,c"], "--weights takes numbers joined by commas"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str, calibrate: Any) -> None:
    refused = calibrate("lpes", *arguments)
    assert refused.status == 2
    assert told in refused.err
