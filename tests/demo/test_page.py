"""Page, picture and data as files."""

import json
import re
from pathlib import Path

import pytest

from rag_middle.demo import picture, write_demonstration
from tests.demo.conftest import made_up


def test_the_page_loads_nothing_and_has_the_figures_of_both_measurements(tmp_path: Path) -> None:
    files = write_demonstration(made_up(), tmp_path / "out")
    assert sorted((tmp_path / "out").iterdir()) == sorted(files.values())
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(files["json"].read_text()) == made_up()
    page = files["html"].read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|<script""", page)
    assert "Is it &lt;so&gt;?" in page  # questions and answers are anybody's text
    assert "<b>yes</b>" not in page
    assert page.count("50.0 [40.4, 59.6]") == 1
    assert page.count("<td>log-likelihood</td>") == 4
    assert page.count("−9.50 [−10.50, −8.50]") == 2
    assert "a small sample" in page
    assert "python measure.py" in page
    page = write_demonstration({**made_up(), "full": None}, tmp_path)["html"].read_text("utf-8")
    assert page.count("−9.50 [−10.50, −8.50]") == 1
    assert "does not come with this installation" in page


def test_the_picture_has_a_line_with_intervals_for_each_method() -> None:
    [axes] = picture(made_up()["full"]).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["Unmodified", "PINE"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "4", "9"]
    line, _, [bars] = axes.containers[0]
    assert list(line.get_ydata()) == [20, 20, 50]
    assert bars.get_segments()[0][:, 1] == pytest.approx([13.3, 28.9])
    [axes] = picture(made_up()["measured"]).axes
    assert min(axes.containers[0][0].get_ydata()) < -9  # nats
