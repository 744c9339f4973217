"""RoPE whose frequencies follow the length of the input: dynamic NTK and longrope.

Below 32 tokens these two families keep the whole contract. Beyond, the unmodified model itself is
inconsistent (cached keys keep the frequencies of their time; a long row moves the others), so what
can be asked is that methods follow the model: same frequencies as it would use, from its own pass.
"""

from contextlib import ExitStack
from itertools import product

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from rag_middle.attention import applied
from rag_middle.layout import PromptLayout
from rag_middle.methods import LPES, PositionInterpolation
from tests.contract.cases import EXAMPLES, LONG, ONE_DOCUMENT, Prompt
from tests.contract.running import distance, generated, generated_under, logits_under, prompt_logits
from tests.families import FAMILIES
from tests.tiny_models import HEAD_SIZE, build, tiny

pytestmark = pytest.mark.thorough

CHANGING = ("llama_dynamic", "llama_longrope")
BEYOND = Prompt.random(PromptLayout(40, ((5, 15), (15, 22), (22, 34))), seed=6)
BEYOND_ONE = Prompt(BEYOND.ids, PromptLayout(40, ((5, 34),)))
NEUTRAL = {
    name: example.neutral for name, example in EXAMPLES.items() if name not in ("none", "compose")
}


def _neutral_prompt(method: str, prompt: Prompt) -> Prompt:
    if EXAMPLES[method].neutral_prompt is ONE_DOCUMENT:
        return {LONG: ONE_DOCUMENT, BEYOND: BEYOND_ONE}[prompt]
    return prompt


def _frozen(family: str, tokens: int) -> PreTrainedModel:
    """The family's weights with the frequencies it uses for `tokens` tokens, at any length."""
    settings = FAMILIES[family].config().rope_parameters
    if family == "llama_longrope":
        factors = settings["short_factor" if tokens <= 32 else "long_factor"]
        rope = {**settings, "short_factor": factors, "long_factor": factors}
    else:
        # Dynamic NTK: beyond 32 tokens the base grows with the length.
        stretch = settings["factor"] * max(tokens, 32) / 32 - (settings["factor"] - 1)
        theta = settings["rope_theta"] * stretch ** (HEAD_SIZE / (HEAD_SIZE - 2))
        rope = {"rope_type": "default", "rope_theta": theta}
    config = tiny(LlamaConfig, rope_parameters=rope, max_position_embeddings=32)
    return build(family, config, "sdpa")


@pytest.mark.pairs(
    ("family", "method", "implementation"), list(product(CHANGING, NEUTRAL, ("sdpa", "eager")))
)
@pytest.mark.one_in(5)
def test_long_prompts_use_the_frequencies_of_the_models_own_pass(
    family: str, method: str, implementation: str
) -> None:
    prompt = _neutral_prompt(method, BEYOND)
    plain = prompt_logits(FAMILIES[family].build(implementation), prompt)
    model = FAMILIES[family].build(implementation)  # dynamic frequencies remember earlier inputs
    logits = logits_under(model, NEUTRAL[method], prompt)
    assert distance(logits, plain) < FAMILIES[family].tolerance


@pytest.mark.pairs(
    ("family", "method", "length"),
    list(product(CHANGING, sorted(NEUTRAL.keys() - {"moice"}), ("crosses while decoding", "long"))),
)
@pytest.mark.one_in(10)
def test_generation_follows_the_model_across_the_change(
    family: str, method: str, length: str
) -> None:
    # MoICE turns all keys anew for every token, by the frequencies of that token's pass: no model
    # does, whose cached keys keep those of their own.
    prompt = _neutral_prompt(method, BEYOND if length == "long" else LONG)
    # PINE keeps the prompt's frequencies while it generates: its cached keys have them too.
    tokens = prompt.layout.length
    expected = _frozen(family, tokens) if method == "pine" else FAMILIES[family].build()
    _, plain = generated(expected, [prompt], steps=12)
    model = FAMILIES[family].build()
    _, logits = generated_under(model, NEUTRAL[method], [prompt], steps=12)
    assert distance(logits, plain) < FAMILIES[family].tolerance


@pytest.mark.parametrize("family", CHANGING)
@pytest.mark.parametrize(
    ("method", "scale"), [(PositionInterpolation(scale=2.5), 2.5), (LPES(factors=1.5), 1.5)]
)
def test_rescaled_positions_do_not_change_the_frequencies(
    family: str, method: PositionInterpolation | LPES, scale: float
) -> None:
    # Positions up to 39 / 2.5 alone would call for the frequencies of a short input.
    positions: Tensor = torch.arange(40)[None] / scale
    expected = _frozen(family, 40)(input_ids=BEYOND.ids, position_ids=positions).logits[0]
    logits = logits_under(FAMILIES[family].build(), method, BEYOND)
    assert distance(logits, expected) < FAMILIES[family].tolerance


@pytest.mark.parametrize("method", ["none", "siw", "ms_poe"])
def test_a_long_prompt_leaves_no_frequencies_to_later_ones(method: str) -> None:
    shorter = Prompt.random(PromptLayout(36, ((5, 15), (15, 30))), seed=7)
    model, alone = FAMILIES["llama_dynamic"].build(), FAMILIES["llama_dynamic"].build()
    rotary = model.model.rotary_emb
    frequencies, length = rotary.inv_freq.clone(), rotary.max_seq_len_cached
    logits = []
    for each, prompts in ((model, (BEYOND, shorter)), (alone, (shorter,))):
        for prompt in prompts:
            last = logits_under(each, EXAMPLES[method].neutral, prompt)
        logits.append(last)
    assert torch.equal(rotary.inv_freq, frequencies)
    assert rotary.max_seq_len_cached == length
    assert torch.equal(*logits)


def test_a_long_input_of_ones_own_before_is_kept_too() -> None:
    # Back below its original length, the module has one tensor under two names.
    model = FAMILIES["llama_dynamic"].build()
    short = Prompt.random(PromptLayout(20, ((5, 15),)), seed=7)
    for prompt in (BEYOND, short):
        prompt_logits(model, prompt)
    plain = prompt_logits(model, short)
    logits_under(model, EXAMPLES["siw"].neutral, BEYOND)
    assert torch.equal(prompt_logits(model, short), plain)


@pytest.mark.parametrize("methods", [("none", "siw"), ("siw", "none"), ("none", "none")])
def test_blocks_that_do_not_end_in_turn_leave_no_frequencies(methods: tuple[str, str]) -> None:
    """As blocks in generators and in tasks: the first ends while the second is open."""
    model = FAMILIES["llama_dynamic"].build()
    rotary = model.model.rotary_emb
    frequencies, length = rotary.inv_freq.clone(), rotary.max_seq_len_cached
    first, second = (ExitStack(), ExitStack())
    for block, method in zip((first, second), methods, strict=True):
        block.enter_context(applied(model, EXAMPLES[method].neutral, [BEYOND.tokens]))
        expected = prompt_logits(model, BEYOND)
    first.close()
    assert torch.equal(prompt_logits(model, BEYOND), expected)
    second.close()
    assert torch.equal(rotary.inv_freq, frequencies)
    assert rotary.max_seq_len_cached == length
