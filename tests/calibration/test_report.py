"""The page of a calibration."""

from pathlib import Path

import pytest

from rag_middle.calibration.report import write_calibration
from rag_middle.profiles import read_profile
from tests.reader import READER_PROFILE

pytestmark = pytest.mark.thorough


def test_the_page_says_what_the_profile_says(tmp_path: Path) -> None:
    profile = read_profile(READER_PROFILE)
    page = write_calibration(profile, tmp_path / "lpes.html", command="again & again")
    text = page.read_text(encoding="utf-8")
    assert "Yes: the worst position gains significantly" in text
    assert profile.note.partition(":")[0] in text
    assert "again &amp; again" in text
    first = profile.scores["held_out"]["places"][0]
    assert f"{100 * first['before']['value']:.1f}<small>" in text
    assert text.count('class="chart"') == 1
    assert "default-src 'none'" in text
