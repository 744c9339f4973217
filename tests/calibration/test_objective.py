"""Scoring by what the model writes, and by teacher forcing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rag_middle.calibration import Example, ExampleObjective
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import LPES, SIW, Method, MsPoE, NoMethod, PositionalHiddenStates
from tests.reference.lpes_search import weighted_accuracy

pytestmark = pytest.mark.thorough

Examples = Callable[..., list[Example]]
METHODS: list[Method] = [
    NoMethod(),
    LPES(factors=(1.1, 1.4, 1.2, 1.0)),
    PositionalHiddenStates(channels=(3,), factor=-1.0),
    SIW(),
    MsPoE(min_ratio=1.0, max_ratio=1.3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.one_in(6)
def test_the_verdict_is_that_of_greedy_decoding(
    method: Method, model: RagMiddleModel, examples: Examples
) -> None:
    made = examples(18)
    outcome = ExampleObjective(model, made, max_batch_size=4).outcome(method, 0, len(made))
    written = [model.generate(e.prompt, method=method, max_new_tokens=8).token_ids for e in made]
    answers = [model.token_ids(e.answer) for e in made]
    greedy = [ids[: len(answer)] == answer for ids, answer in zip(written, answers, strict=True)]
    assert outcome.right == "".join("1" if is_greedy else "0" for is_greedy in greedy)
    if isinstance(method, NoMethod):
        assert 0 < outcome.right.count("1") < len(made)  # else nothing was told apart


def test_the_score_is_what_was_asked_for(model: RagMiddleModel, examples: Examples) -> None:
    made = examples(6)
    exact = ExampleObjective(model, made)
    likely = ExampleObjective(model, made, criterion="log_likelihood")
    one, other = (objective.outcome(NoMethod(), 0, 6) for objective in (exact, likely))
    assert one.score == one.right.count("1") / 6 == exact(NoMethod())
    assert other.score == other.log_likelihood == one.log_likelihood == likely(NoMethod())
    by_hand = [model.score(e.prompt, e.answer).total for e in made]
    assert other.score == pytest.approx(sum(by_hand) / 6, abs=1e-4)  # padding moves last digits


def test_generated_answers_weigh_as_in_the_naive_fitness(
    model: RagMiddleModel, examples: Examples
) -> None:
    """The answer comes in the middle of a sentence, or is another of the right ones."""
    weights = {0: 0.2, 2: 0.3, 4: 0.5}
    made = []
    for index, example in enumerate(examples(12)):
        said = model.generate(example.prompt, max_new_tokens=6).text.split()
        alias = said[2] if index % 5 in (0, 1, 3) and len(said) > 2 else "nothing of the kind"
        answers = ("what nobody says", alias)
        made.append(
            replace(example, answers=answers, weight=weights[example.position], max_new_tokens=6)
        )
    objective = ExampleObjective(model, made, criterion="generated_answer", max_batch_size=5)
    outcome = objective.outcome(NoMethod(), 0, 12)
    expected = weighted_accuracy(
        model.model,
        [[list(model.encode(e.prompt).input_ids) for e in made[i : i + 3]] for i in (0, 3, 6, 9)],
        [[e.answers for e in made[i : i + 3]] for i in (0, 3, 6, 9)],
        lambda ids: str(model.tokenizer.decode(ids, skip_special_tokens=True)),
        max_new_tokens=6,
    )
    assert outcome.score == pytest.approx(expected)
    assert 0 < outcome.right.count("1") < 12
    assert outcome.log_likelihood is None
    # Word for word from the first token on, fewer of them are written.
    word_for_word = [replace(example, answer=f" {example.answers[1]}") for example in made]
    assert ExampleObjective(model, word_for_word)(NoMethod()) < outcome.score


def test_where_nothing_generated_is_right_the_likelihood_says_what_is_nearest(
    model: RagMiddleModel, examples: Examples
) -> None:
    made = [replace(example, answers=("nothing of the kind",)) for example in examples(6)]
    objective = ExampleObjective(model, made, criterion="generated_answer")
    outcome = objective.outcome(NoMethod(), 0, 6)
    likely = ExampleObjective(model, made, criterion="log_likelihood")
    assert outcome.score == 0
    assert outcome.log_likelihood == likely(NoMethod())
