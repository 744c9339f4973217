"""Attention that is looked at is the model's own."""

import pytest
import torch

from rag_middle.attention.observe import last_token_attention
from tests.families import FAMILIES


@pytest.mark.parametrize(
    "family", ["llama", "gpt_oss", "gemma2"]
)  # plain, sinks, soft-cap and window
def test_the_last_tokens_attention_is_what_the_model_returns(family: str) -> None:
    model = FAMILIES[family].build("eager")
    ids = torch.arange(2, 26)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        layers = model(input_ids=ids, output_attentions=True).attentions
    expected = torch.stack([layer[0, :, -1, :24] for layer in layers])
    torch.testing.assert_close(last_token_attention(model, ids, "a test"), expected)
