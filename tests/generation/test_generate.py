"""What `generate` returns."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle import ContextPrompt, PromptLayout, applied
from rag_middle.generation import MissingDocumentsWarning, RagMiddleModel
from rag_middle.methods import (
    LPES,
    PINE,
    SIW,
    Compose,
    Method,
    MsPoE,
    NoMethod,
    PositionalHiddenStates,
    PositionInterpolation,
)
from rag_middle.tokens import TokenizedPrompt, encode
from tests.conftest import FamilyModel
from tests.contract.snapshot import snapshot

METHODS: tuple[Method, ...] = (
    NoMethod(),
    PINE(),
    MsPoE(first_layer=0),
    LPES(factors=1.5),
    SIW(),
    PositionInterpolation(scale=2.0),
    PositionalHiddenStates(channels=(5,), factor=-1.0),
    Compose(methods=(LPES(factors=1.5), SIW())),
)
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@each_method
@pytest.mark.one_in(3)
def test_greedy_text_is_what_transformers_generates_under_the_method(
    model: RagMiddleModel, prompt: ContextPrompt, method: Method
) -> None:
    tokens = encode(model.tokenizer, prompt)
    ids = torch.tensor([tokens.input_ids])
    with applied(model.model, method, [tokens]):
        output = model.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False
        )
    expected = output[0, ids.shape[1] :].tolist()

    generation = model.generate(prompt, method=method, max_new_tokens=10)

    assert list(generation.token_ids) == expected
    assert generation.text == model.tokenizer.decode(expected, skip_special_tokens=True)
    assert generation.finish_reason == "length"
    assert generation.method == ("lpes+siw" if isinstance(method, Compose) else method.name)
    assert generation.applied == (not method.is_neutral)


@each_method
@pytest.mark.one_in(3)
def test_a_batch_gives_what_each_prompt_gives_alone(
    model: RagMiddleModel, prompts: list[ContextPrompt], method: Method
) -> None:
    alone = [model.generate(p, method=method, max_new_tokens=7) for p in prompts]
    for size in (2, 8):
        together = model.batch(prompts, method=method, max_new_tokens=7, max_batch_size=size)
        assert [g.token_ids for g in together] == [g.token_ids for g in alone]
        assert [g.usage for g in together] == [g.usage for g in alone]


def test_a_batch_goes_through_the_model_together(
    model: RagMiddleModel, prompts: list[ContextPrompt]
) -> None:
    rows: list[int] = []

    def record(module: object, args: tuple[object, ...], kwargs: dict[str, torch.Tensor]) -> None:
        rows.append(kwargs["input_ids"].shape[0])

    with model.model.register_forward_pre_hook(record, with_kwargs=True):
        model.batch(prompts, max_new_tokens=3, max_batch_size=3)
    assert rows == [3, 3, 3, 1, 1, 1]
    assert model.batch([]) == []


def test_speed_is_that_of_the_tokens_after_the_first(
    model: RagMiddleModel, prompt: ContextPrompt
) -> None:
    one, five = (model.generate(prompt, max_new_tokens=count) for count in (1, 5))
    assert one.tokens_per_second == 0
    assert five.tokens_per_second == pytest.approx(4 / five.timings.decode)


@each_method
def test_prompts_without_documents_run_and_say_that_the_method_did_nothing(
    model: RagMiddleModel, prompt: ContextPrompt, method: Method
) -> None:
    plain = model.generate("Question: why?", max_new_tokens=6)
    kwargs = {"method": method, "max_new_tokens": 6, "on_missing_documents": "ignore"}
    mixed = model.batch([prompt, "Question: why?"], **kwargs)  # type: ignore[arg-type]
    works_without = any(
        not part.needs_documents
        for part in (method.methods if isinstance(method, Compose) else (method,))
    )
    assert mixed[0].applied == (not method.is_neutral)
    assert mixed[1].applied == (works_without and not method.is_neutral)
    assert mixed[1].documents == 0
    if not mixed[1].applied:
        assert mixed[1].token_ids == plain.token_ids


def test_missing_documents_warn_at_the_callers_line_or_are_refused(model: RagMiddleModel) -> None:
    with pytest.warns(MissingDocumentsWarning, match="pine needs documents") as caught:
        model.generate("Why?", method="pine", max_new_tokens=1)
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="Pass a ContextPrompt"):
        model.generate("Why?", method="pine", max_new_tokens=1, on_missing_documents="error")
    for call in (model.generate, model.logits):
        with pytest.raises(ValueError, match="Mark some"):
            call(
                "Why?",
                method="pine",
                on_missing_documents="error",
                missing_documents_hint="Mark some.",
            )


def test_beams_are_what_transformers_finds(model: RagMiddleModel, prompt: ContextPrompt) -> None:
    tokens = encode(model.tokenizer, prompt)
    ids = torch.tensor([tokens.input_ids])
    with applied(model.model, PINE(), [tokens]):
        output = model.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, num_beams=3
        )
    found = model.batch(
        [prompt, ContextPrompt("", ["A fox.", "A dog."], "?")],
        method="pine",
        max_new_tokens=6,
        num_beams=3,
    )
    assert list(found[0].token_ids) == output[0, ids.shape[1] :].tolist()


class _Failing(Event):
    """Fails when asked for the last of `calls` times: in the middle of generation."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._calls = calls

    def is_set(self) -> bool:
        self._calls -= 1
        if not self._calls:
            raise RuntimeError("in the middle")
        return False


@each_method
@pytest.mark.one_in(3)
def test_every_call_leaves_the_model_as_it_was(
    model: RagMiddleModel, prompt: ContextPrompt, method: Method
) -> None:
    model.model.train()
    model.model.model.layers[1].eval()  # a mixture of modes is kept, too
    try:
        before = snapshot(model.model)
        model.generate(prompt, method=method, max_new_tokens=2, temperature=1.0, seed=1)
        model.batch([prompt, prompt], method=method, max_new_tokens=2, num_beams=2)
        model.score(prompt, " a fox", method=method)
        model.logits(prompt, method=method)
        list(model.stream(prompt, method=method, max_new_tokens=2))
        with pytest.raises(RuntimeError, match="in the middle"):
            model.generate(prompt, method=method, max_new_tokens=9, cancel=_Failing(calls=4))
        assert snapshot(model.model) == before
    finally:
        model.model.eval()


def test_lengths_that_change_frequencies_do_not_share_a_batch(
    family_model: FamilyModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """LongRoPE switches frequencies for the whole batch when one row gets long."""
    model = RagMiddleModel(family_model("llama_longrope"), tokenizer)
    prompts = [
        TokenizedPrompt(input_ids=tuple(range(20, 20 + n)), layout=PromptLayout(length=n))
        for n in (9, 40, 20, 30, 40)  # the frequencies change above 32
    ]
    together = model.batch(prompts, max_new_tokens=5)
    alone = [model.generate(prompt, max_new_tokens=5) for prompt in prompts]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]


# -- requests of many threads ----------------------------------------------------------------------


SCALED = LPES(factors=1.5)
ASKED_FOR = ("none", "pine", "ms_poe", SCALED, "siw", [SCALED, "siw"], "attention_buckets", "pine")


def request(number: int) -> ContextPrompt:
    documents = [f"Document about {number * 7 + i}. " * (1 + i % 3) for i in range(2 + number % 4)]
    return ContextPrompt(f"Read these, {number}.\n", documents, f"Which is {number}?")


@pytest.mark.thorough
def test_eight_threads_get_what_each_gets_alone(
    llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    models = [RagMiddleModel(llama, tokenizer), RagMiddleModel(llama, tokenizer, method="pine")]

    def generate(number: int) -> tuple[object, ...]:
        model, method = models[number % 2], ASKED_FOR[number % len(ASKED_FOR)]
        prompt = request(number)
        options = {"method": method, "max_new_tokens": 6, "temperature": 0.9 * (number % 3)}
        whole = model.generate(prompt, seed=number, **options)  # type: ignore[arg-type]
        stream = model.stream(prompt, seed=number, **options)  # type: ignore[arg-type]
        score = model.score(prompt, " fox", method=method)
        return whole.text, "".join(stream), score.log_probabilities, model.count_tokens(prompt)

    alone = [generate(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(generate, range(8)))
    assert together == alone
    assert all(whole == streamed for whole, streamed, *_ in alone)
    assert len({whole for whole, *_ in alone}) > 5  # the requests do differ
