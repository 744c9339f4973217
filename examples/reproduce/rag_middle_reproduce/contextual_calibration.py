r"""Contextual calibration of scored choices (Zhao et al. 2021, arXiv:2102.09690).

A model prefers some letters whatever is asked. How much, is read off the same prompt with a text
without content in place of the question, and divided out:

.. math:: q = W p, \qquad W = \mathrm{diag}(p_{cf})^{-1}, \qquad b = 0

``p`` are the probabilities of a question's letters, normalised to one over the letters; ``p_cf`` is
the mean of the letters' probabilities over the texts ``N/A``, ``[MASK]`` and the empty one,
normalised after the mean, as in the authors' code. The answer is the letter of the largest ``q``.
The examples before a question are part of the prompt, so ``p_cf`` is computed for each subject, and
for each method that is compared::

    python -m rag_middle_reproduce.contextual_calibration --model meta-llama/Llama-2-7b-chat-hf \
        --data mmlu-test.jsonl --shots mmlu-dev.jsonl --method ms_poe

prints the accuracy by log-likelihood of the letter, as it is and calibrated.

The paper's tasks have labels that do not change; where the choices are texts of their own, each of
them is replaced like the question, which is our reading.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rag_middle import ConfigError, ContextPrompt, RagMiddleError, RagMiddleModel
from rag_middle.evaluation import LabelledMethod, labelled_methods
from rag_middle.methods import Method
from rag_middle_reproduce.matrix import markdown_table
from rag_middle_reproduce.models import add_model_options, load_chosen
from rag_middle_reproduce.samples import write_samples
from rag_middle_reproduce.tasks.multiple_choice import ChoiceQuestion, MultipleChoice

__all__ = ["CONTENT_FREE", "ChoiceAccuracy", "calibrated", "choice_accuracies", "main"]

#: As in the paper, section 5.
CONTENT_FREE = ("N/A", "[MASK]", "")

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAccuracy:
    """Shares of right answers under one method.

    Attributes:
        method: its label.
        plain: where the most likely letter is the answer.
        calibrated: where it is the most likely one after contextual calibration.
        questions: how many were asked.
    """

    method: str
    plain: float
    calibrated: float
    questions: int


def calibrated(log_probabilities: Numbers, content_free: Numbers) -> Numbers:
    """Logarithms of ``diag(p_cf)^-1 p``, normalised to one.

    Args:
        log_probabilities: of a question's choices, in nats, `[k]`.
        content_free: of the same choices under each text without content, `[texts, k]`.

    Returns:
        `[k]`, in nats.

    Raises:
        ConfigError: a choice that has no probability without content: nothing can be
            divided by it.
    """
    bias = np.logaddexp.reduce(content_free, axis=0)  # sums and factors of all choices cancel out
    if not np.isfinite(bias).all():
        raise ConfigError(
            f"The choices' log-likelihoods without content are {content_free.tolist()}, and a "
            "question's probabilities are divided by them. Load the model in a wider number format."
        )
    scores = log_probabilities - bias
    return np.asarray(scores - np.logaddexp.reduce(scores))


def choice_accuracies(
    model: RagMiddleModel,
    questions: Sequence[ChoiceQuestion],
    methods: Sequence[LabelledMethod],
    *,
    max_batch_size: int = 8,
) -> list[ChoiceAccuracy]:
    """Accuracy by log-likelihood of the letter, without and with contextual calibration.

    Prompts are raw text: chat templates would stand between a question and its letter.

    Args:
        model: that answers.
        questions: all of them.
        methods: under which.
        max_batch_size: prompts per forward pass.

    Raises:
        ConfigError: as `calibrated`.
    """
    results = []
    for labelled in methods:
        forms = [(asked.context, asked.content_free, asked.letters) for asked in questions]
        # Questions of one subject share their context: it is calibrated once.
        contexts = {(context, letters): form for context, form, letters in forms}
        without_content = [
            (context + form(text), letters)
            for (context, letters), form in contexts.items()
            for text in CONTENT_FREE
        ]
        with_content = [(q.context + q.question, q.letters) for q in questions]
        rows = _letter_scores(
            model, [*without_content, *with_content], labelled.method, max_batch_size
        )
        size = len(CONTENT_FREE)
        biases = {
            key: np.stack(rows[at * size : (at + 1) * size]) for at, key in enumerate(contexts)
        }
        right = np.zeros(2)
        for asked, row in zip(questions, rows[len(without_content) :], strict=True):
            scores = calibrated(row, biases[asked.context, asked.letters])
            right += [asked.letters[int(of.argmax())] == asked.answer for of in (row, scores)]
        plain, divided = (right / max(1, len(questions))).tolist()
        results.append(
            ChoiceAccuracy(
                method=labelled.label, plain=plain, calibrated=divided, questions=len(questions)
            )
        )
    return results


def _letter_scores(
    model: RagMiddleModel,
    prompts: Sequence[tuple[str, str]],
    method: Method,
    max_batch_size: int,
) -> list[Numbers]:
    """Log-likelihoods of each prompt's letters."""
    pairs = [(text, letter) for text, letters in prompts for letter in letters]
    scores = model.score_batch(
        [ContextPrompt(suffix=text) for text, _ in pairs],
        [f" {letter}" if text[-1].isascii() else letter for text, letter in pairs],
        method=method,
        max_batch_size=max_batch_size,
        template="raw",
        on_missing_documents="ignore",
    )
    totals = iter([score.total for score in scores])
    return [np.array([next(totals) for _ in letters]) for _, letters in prompts]


def main(arguments: list[str] | None = None) -> None:
    """Accuracy of lettered choices by log-likelihood, with and without contextual calibration."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.contextual_calibration", description=main.__doc__
    )
    add_model_options(parser, try_out="two invented questions")
    parser.add_argument("--data", type=Path, help="questions, such as mmlu-test.jsonl")
    parser.add_argument("--shots", type=Path, help="examples, such as mmlu-dev.jsonl")
    parser.add_argument("--wording", default="mmlu", help="mmlu or ceval")
    parser.add_argument("--method", action="append", default=[], help="to compare; repeatable")
    parser.add_argument("--limit", type=int, default=2000, help="questions")
    options = parser.parse_args(arguments)
    if options.data is None and not options.try_out:
        parser.error("--data FILE is needed: the questions, such as mmlu-test.jsonl of prepare.py")
    try:
        with tempfile.TemporaryDirectory() as folder:
            data, shots = options.data, options.shots
            if options.try_out:
                samples = write_samples(Path(folder))
                vars(options).update(model="small", limit=2)
                data, shots = samples / "mmlu-test.jsonl", samples / "mmlu-dev.jsonl"
            task = MultipleChoice(data=data, shots=shots, wording=options.wording)
            questions = task.questions(options.limit)
        methods = labelled_methods(options.method)
        model = load_chosen(options)
        rows = choice_accuracies(model, questions, methods)
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")
    cells = [
        [row.method, f"{100 * row.plain:.1f}", f"{100 * row.calibrated:.1f}", str(row.questions)]
        for row in rows
    ]
    print(markdown_table(["method", "log-likelihood", "calibrated", "questions"], cells))


if __name__ == "__main__":
    main()
