"""How many tokens a model takes, by what its config says of rotary positions."""

from typing import Any

import pytest
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MptConfig,
    Phi3Config,
    PretrainedConfig,
)

from rag_middle.attention import context_window

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}


def llama(window: int, rope: dict[str, Any] | None = None) -> PretrainedConfig:
    return LlamaConfig(max_position_embeddings=window, rope_scaling=rope)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (llama(4096), 4096),
        (llama(4096, {"type": "linear", "factor": 4.0}), 16384),  # vicuna 16k
        (llama(32768, YARN), 131072),  # Qwen 2.5, as its card says
        (llama(131072, YARN), 131072),  # the length after scaling is stated: gpt-oss, OLMo 3
        (llama(163840, {**YARN, "factor": 2.0}), 163840),  # never less than stated
        (llama(131072, LLAMA3), 131072),  # Llama 3.2: includes the factor
        (
            Phi3Config(  # type: ignore[call-arg]
                max_position_embeddings=131072,
                original_max_position_embeddings=4096,
                rope_scaling=dict(LONGROPE),
            ),
            131072,
        ),
        (  # scaled in some layers only: the length is the one after it
            Gemma3TextConfig(  # type: ignore[call-arg]
                max_position_embeddings=131072, rope_scaling={"rope_type": "linear", "factor": 8.0}
            ),
            131072,
        ),
        (MistralConfig(max_position_embeddings=32768, sliding_window=4096), 32768),
        (MptConfig(max_seq_len=2048), 2048),
        (PretrainedConfig(), None),
    ],
)
def test_the_window_is_what_scaling_makes_of_it(
    config: PretrainedConfig, window: int | None
) -> None:
    assert context_window(config) == window
