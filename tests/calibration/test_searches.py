"""Which settings are tried, and what is found out before."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.calibration import (
    ChannelSearch,
    Example,
    GroupSearch,
    HeadSearch,
    InitialTokenSearch,
    LayerSearch,
    Outcome,
    RatioSearch,
    RetrievalHeadSearch,
    Search,
    make_search,
    mean_hidden_states,
    random_texts,
)
from rag_middle.calibration.search import SearchInputs, drive, layer_ranges
from rag_middle.errors import ConfigError, RagMiddleError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import (
    SIW,
    DySCO,
    Method,
    MsPoE,
    PositionalHiddenStates,
    SelfExtend,
    ZeroTuning,
)
from rag_middle.methods.dysco.detection import retrieval_heads
from tests.tokenizers import CHATML, byte_level_bpe

Examples = Callable[..., list[Example]]


def searched(
    search: Search,
    model: RagMiddleModel,
    examples: Sequence[Example],
    score: Callable[[Any], float],
) -> tuple[Any, list[Method], dict[str, Any]]:
    """The best candidate, all methods in the order of their proposal, and the details."""
    scored, details = drive(
        search.propose(SearchInputs(model=model, examples=examples)),
        lambda candidates: [Outcome(score=score(candidate.method)) for candidate in candidates],
    )
    assert len(scored) <= search.max_candidates(model)
    best, _ = max(scored, key=lambda pair: pair[1].score)
    return best, [candidate.method for candidate, _ in scored], details


def test_ranges_of_32_layers_are_the_papers() -> None:
    ranges = [(layers[0], layers[-1]) for layers in layer_ranges(32)]
    assert ranges == [(10, 25), (10, 31), (16, 31), (0, 31)]


@pytest.mark.parametrize("layers", [4, 12])
def test_a_planted_positional_channel_is_found(layers: int) -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(layers, 200, 16, generator=noise)
    hidden[:, :, 5] = torch.linspace(3, -2, 200)
    [channel] = ChannelSearch(top=1).channels(hidden)
    assert (channel.channel, channel.direction) == (5, -1)


def test_the_best_channels_and_factors_are_tried_in_other_layers(
    model: RagMiddleModel, examples: Examples
) -> None:
    search = ChannelSearch(texts=16, tokens=100, top=3, factors=(0.5, 0.0, -1.0))
    best, seen, details = searched(
        search, model, examples(6), lambda method: -abs(method.factor - 0.5)
    )
    channels = [channel["channel"] for channel in details["channels"]]
    assert 2 <= len(channels) <= 3
    middle, *others = layer_ranges(4)
    tried = [
        (m.channels[0], m.factor, m.layers) for m in seen if isinstance(m, PositionalHiddenStates)
    ]
    pairs = len(channels) * 3
    assert {layers for _, _, layers in tried[:pairs]} == {middle}
    assert len(set(tried)) == len(seen) == pairs + 4 * len(others)
    again = {(channel, factor) for channel, factor, _ in tried[pairs:]}
    assert len(again) == 4
    assert {(channel, 0.5) for channel in channels} < again
    assert {layers for _, _, layers in tried[pairs:]} == set(others)
    assert best.method.factor == 0.5


def test_as_in_the_paper_the_channel_is_chosen_first_in_layers_fixed_by_hand(
    model: RagMiddleModel, examples: Examples
) -> None:
    sizes = {"texts": 16, "tokens": 100, "top": 3, "factors": (0.5, 0.0, -1.0)}
    for layers in (None, (1, 3)):
        search = make_search("positional_hidden_states:paper", {**sizes, "layers": layers})
        assert (search.questions, search.criterion) == (100, "log_likelihood")
        best, seen, details = searched(
            search, model, examples(6), lambda method: -method.channels[0] - method.factor
        )
        channels = [channel["channel"] for channel in details["channels"]]
        tried = [(m.channels[0], m.factor) for m in seen if isinstance(m, PositionalHiddenStates)]
        first = [(channel, 0.5) for channel in channels]
        assert tried == [*first, (min(channels), 0.0), (min(channels), -1.0)]
        assert best.method == seen[-1]
        assert {vars(method)["layers"] for method in seen} == {layers or layer_ranges(4)[0]}


def test_areas_are_those_that_get_more_than_their_share(
    model: RagMiddleModel, examples: Examples
) -> None:
    search = InitialTokenSearch(dense=(0.5, 1.0), sparse=(1.0, 1.5), areas=5)
    made = examples(6)
    flags = search.dense_areas(SearchInputs(model=model, examples=made))
    assert sorted(flags) == [0, 1, 2, 3]
    assert any(any(areas) for areas in flags.values())
    assert all(len(areas) == 5 and not all(areas) for areas in flags.values())
    best, seen, _ = searched(search, model, made, lambda method: method.alpha_sparse)
    assert len(seen) == 3 * len(layer_ranges(4))
    for method in seen:
        assert isinstance(method, SIW)
        assert not method.is_neutral
        assert all(flags[layer] == areas for layer, areas in (method.dense_areas or {}).items())
    assert best.method.alpha_sparse == 1.5


def test_areas_are_those_of_prompts_as_they_are_asked(
    model: RagMiddleModel, examples: Examples
) -> None:
    chatting = RagMiddleModel(model.model, byte_level_bpe(bos=True, chat_template=CHATML))
    search, made = InitialTokenSearch(), examples(6)
    plain = search.dense_areas(SearchInputs(model=model, examples=made))
    chat = search.dense_areas(SearchInputs(model=chatting, examples=made))
    raw = search.dense_areas(SearchInputs(model=chatting, examples=made, template="raw"))
    assert raw == plain != chat


def test_ratios_are_tried_under_both_head_rules(model: RagMiddleModel) -> None:
    search = RatioSearch(ranges=((1.0, 1.5), (1.2, 1.8)), first_layers=(0, 2, 8))
    best, seen, _ = searched(search, model, [], lambda method: method.max_ratio)
    tried = {(m.max_ratio, m.first_layer, m.reference_code) for m in seen if isinstance(m, MsPoE)}
    assert tried == {(r, f, c) for r in (1.5, 1.8) for f in (0, 2) for c in (False, True)}
    assert best.method.max_ratio == 1.8


def test_heads_are_told_apart_and_tuned_together(model: RagMiddleModel) -> None:
    """Head 2 wants more of the initial token, head 1 less."""

    def score(method: ZeroTuning) -> float:
        assert isinstance(method.factor, float)
        heads = range(4) if method.heads is None else method.heads
        gain = sum({2: 1.0, 1: -1.0}.get(head, 0.0) for head in heads)
        return gain * (method.factor - 1)

    search = HeadSearch(shares=(0.25,), factors=(0.5, 3.0))
    best, seen, details = searched(search, model, [], score)
    assert len(seen) == search.max_candidates(model)
    assert details["heads"] == [0, -1, 1, 0]
    assert (best.key, best.method) == ("1 up-effective x 3", ZeroTuning(factor=3.0, heads=(2,)))
    assert ZeroTuning(factor=0.5, heads=(1,)) in seen


def test_groups_are_tried_under_windows_that_prompts_leave(
    model: RagMiddleModel, examples: Examples
) -> None:
    made = examples(4)
    longest = max(model.count_tokens(example.prompt) for example in made)
    search = GroupSearch(groups=(2, 8), windows=(4, 8, 16, longest, 5000))
    best, seen, _ = searched(search, model, made, lambda method: -method.window - method.group)
    tried = {(m.group, m.window) for m in seen if isinstance(m, SelfExtend)}
    assert tried == {(2, 4), (2, 8), (2, 16), (8, 8), (8, 16)}
    assert best.method == SelfExtend(group=2, window=4)
    with pytest.raises(ConfigError, match=f"has {longest} tokens"):
        searched(GroupSearch(windows=(longest,)), model, made, lambda method: 0.0)


@pytest.mark.slow
def test_the_best_retrieval_heads_are_tried(model: RagMiddleModel) -> None:
    search = RetrievalHeadSearch(counts=(1, 3), strengths=(1.5, 4.0), top_ks=(8,))
    assert model.context_window is not None  # which the needle's repetition has to fit in
    expected = retrieval_heads(model.model, 3, prompt_tokens=model.context_window - 8)
    best, seen, details = searched(search, model, [], lambda method: method.strength)
    tried = {(m.heads, m.strength, m.top_k) for m in seen if isinstance(m, DySCO)}
    assert tried == {(expected[:n], s, 8) for n in (1, len(expected)) for s in (1.5, 4.0)}
    assert details == {"retrieval_heads": [list(head) for head in expected]}
    assert best.method.strength == 4.0


def test_an_unknown_method_or_option_suggests_a_known_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'ms_poe'"):
        make_search("mspoe")
    with pytest.raises(ConfigError, match="Did you mean 'generations'"):
        make_search("lpes", {"generation": 3})
    assert make_search("lpes", {"generations": 3}) == LayerSearch(generations=3)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("lpes", {"control_points": 6}, "must be one of 2, 3, 4, 5"),
        ("lpes", {"parents": 33}, "parents must be 2 to population=32"),
        ("ms_poe", {"ranges": (1.5,)}, r"ranges\[0\] must be several ratios"),
        ("zero_tuning", {"shares": (1.5,)}, "must be above 0 and below 1"),
    ],
)
def test_searches_that_make_no_sense_are_refused(
    method: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RagMiddleError, match=message):
        make_search(method, options)


# -- mean hidden states ----------------------------------------------------------------------------


def texts(model: RagMiddleModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 100, (5, 12), generator=generator)


def test_they_are_the_models_own(model: RagMiddleModel) -> None:
    ids = texts(model)
    streamed = mean_hidden_states(model, ids, max_batch_size=2)
    seen: list[Any] = []
    hook = model.model.model.layers[1].register_forward_hook(lambda *call: seen.append(call[2]))
    model.model(ids)
    hook.remove()
    [output] = seen
    expected = (output[0] if isinstance(output, tuple) else output).mean(dim=0)
    torch.testing.assert_close(streamed[1], expected, atol=1e-5, rtol=1e-5)
    assert streamed.shape == (4, 12, 64)


def test_texts_are_of_the_documents_and_repeatable(
    model: RagMiddleModel, examples: Callable[..., list[Example]]
) -> None:
    made = examples(6)
    one, again, other = (
        random_texts(model, made, count=3, tokens=50, seed=seed) for seed in (1, 1, 2)
    )
    assert one.shape == (3, 50)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert "is quick" in model.tokenizer.decode(one[0])
