"""Contextual calibration against numbers worked out by hand and a twin that runs the model bare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.evaluation import labelled_methods

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
from rag_middle_reproduce.contextual_calibration import (
    CONTENT_FREE,
    calibrated,
    choice_accuracies,
    main,
)
from rag_middle_reproduce.samples import write_samples
from rag_middle_reproduce.tasks.multiple_choice import ChoiceQuestion, MultipleChoice


def test_probabilities_are_divided_by_those_without_content() -> None:
    """p = (0.6, 0.4), and without content the mean of (0.9, 0.1) and (0.07, 0.03), which is
    (0.485, 0.065): q is in the ratio of 0.6 / 0.485 to 0.4 / 0.065, about 1 to 5.
    """
    content_free = np.log([[0.9, 0.1], [0.07, 0.03]])
    first, second = 0.6 / 0.485, 0.4 / 0.065
    expected = [first / (first + second), second / (first + second)]
    for scale in (1, 1e-9):  # letters may have a small part of the probability
        got = calibrated(np.log([0.6 * scale, 0.4 * scale]), content_free)
        np.testing.assert_allclose(np.exp(got), expected)
    with pytest.raises(ConfigError, match="wider number format"):
        calibrated(np.log([0.6, 0.4]), np.array([[0.0, -np.inf]]))


@pytest.fixture
def questions(tmp_path: Path) -> list[ChoiceQuestion]:
    samples = write_samples(tmp_path)
    task = MultipleChoice(
        data=samples / "mmlu-test.jsonl", shots=samples / "mmlu-dev.jsonl", num_shots=1
    )
    return task.questions(4)


def test_a_text_without_content_takes_the_place_of_question_and_choices(
    questions: list[ChoiceQuestion],
) -> None:
    assert CONTENT_FREE == ("N/A", "[MASK]", "")
    assert questions[0].content_free("N/A") == "N/A\nA. N/A\nB. N/A\nC. N/A\nD. N/A\nAnswer:"
    assert questions[0].context.count("Answer:") == 1


def test_accuracies_are_those_of_the_models_own_logits(
    model: RagMiddleModel, questions: list[ChoiceQuestion]
) -> None:
    def letter_probabilities(text: str, letters: str) -> list[float]:
        weights = []
        for letter in letters:
            ids = model.encode(text, template="raw").input_ids
            rest = model.token_ids(f" {letter}")
            with torch.no_grad():
                logits = model.model(torch.tensor([[*ids, *rest]])).logits[0].double()
            steps = logits.log_softmax(-1)[len(ids) - 1 : -1]
            weights.append(float(sum(step[i] for step, i in zip(steps, rest, strict=True)).exp()))
        return weights

    plain, divided = 0, 0
    for asked in questions:
        p = letter_probabilities(asked.context + asked.question, asked.letters)
        bias = [0.0] * 4
        for text in ("N/A", "[MASK]", ""):
            prompt = asked.context + asked.content_free(text)
            of_text = letter_probabilities(prompt, asked.letters)
            bias = [b + q for b, q in zip(bias, of_text, strict=True)]
        q = [a / b for a, b in zip(p, bias, strict=True)]
        plain += asked.letters[p.index(max(p))] == asked.answer
        divided += asked.letters[q.index(max(q))] == asked.answer
    none, other = choice_accuracies(model, questions, labelled_methods(["ms_poe"]))
    assert (none.method, other.method) == ("none", "ms_poe")
    assert none.plain == plain / 4
    assert none.calibrated == divided / 4
    assert none.questions == 4


def test_the_command_tries_out_and_asks_for_data(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--try-out", "--method", "ms_poe"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| method | log-likelihood | calibrated | questions |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| none", "| ms_poe"]
    with pytest.raises(SystemExit):
        main([])
    assert "--data FILE is needed" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="Did you mean 'ms_poe'"):
        main(["--try-out", "--method", "mspoe"])
