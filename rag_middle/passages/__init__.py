"""Real questions with the passages that answer them, for demonstrations and diagnoses without data.

600 questions of NaturalQuestions-Open (Kwiatkowski et al., 2019) with their gold passages from
Wikipedia, as the Lost in the Middle benchmark (arXiv:2307.03172) collected them. Questions and
passages: CC BY-SA 3.0, by the authors of NaturalQuestions and of Wikipedia; unchanged but for the
selection. One JSON object per line: ``question``, ``answers``, ``title``, ``text``,
and ``nearest``, the 0-based lines of the 30 passages most like the question by all-MiniLM-L6-v2.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["passages_path"]


def passages_path() -> Path:
    """The file of JSON lines; `rag_middle.evaluation.tasks.OwnQuestions` reads it."""
    return Path(__file__).parent / "natural_questions.jsonl"
