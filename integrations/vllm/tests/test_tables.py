"""Tables for other positions, against vLLM's own rotary classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from rag_middle.attention import Rotation
from rag_middle_vllm.tables import NotRotatableError, prove_rotated, rotated_copy

SIZE, POSITIONS = 32, 128
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ORIGINAL = {"original_max_position_embeddings": 64}
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "partial": {"partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", **LLAMA3, **ORIGINAL},
    "yarn": {"rope_type": "yarn", "factor": 2.0, **ORIGINAL},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "sections": {"mrope_section": [4, 6, 6]},
}


@pytest.fixture(autouse=True, scope="module")
def config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


def rotary(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, **KINDS[kind], **changes}
    return get_rope(SIZE, POSITIONS, rope_parameters=parameters, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_position_2p_of_the_copy_is_position_p_of_the_model(kind: str) -> None:
    """A query and a key alike, whatever scaling the model has."""
    module = rotary(kind)
    copy = rotated_copy(module, Rotation(scale=2), POSITIONS)
    # In table rows, since states differ by position.
    torch.testing.assert_close(copy.cos_sin_cache[::2], module.cos_sin_cache[: POSITIONS // 2])
    prove_rotated(module, copy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_runs_its_own_table_and_the_original_is_left_alone(
    kind: str, dtype: torch.dtype
) -> None:
    module = rotary(kind, dtype)
    before = module.cos_sin_cache.clone()
    copy = rotated_copy(module, Rotation(scale=1.5), POSITIONS)
    assert copy._forward_method.__self__ is copy
    assert copy.cos_sin_cache.dtype == dtype
    assert torch.equal(module.cos_sin_cache, before)
    assert rotary(kind, dtype) is module  # which vLLM keeps for whoever asks for the same


def test_a_larger_base_is_that_of_another_model() -> None:
    copy = rotated_copy(rotary("default"), Rotation(base_factor=1.8), POSITIONS)
    other = rotary("default", rope_theta=18000.0)
    torch.testing.assert_close(copy.cos_sin_cache, other.cos_sin_cache, atol=1e-5, rtol=1e-5)


def test_positions_are_divided_and_not_frequencies() -> None:
    copy = rotated_copy(rotary("default"), Rotation(scale=1.3), POSITIONS)
    frequencies = 10000.0 ** -(torch.arange(0, SIZE, 2, dtype=torch.float) / SIZE)
    angles = (torch.arange(POSITIONS).float() / 1.3)[:, None] * frequencies
    assert (copy.cos_sin_cache[:, : SIZE // 2] - angles.cos()).abs().max() < 2e-5


def test_a_module_that_does_not_make_its_table_again_is_refused() -> None:
    module = rotary("default", rope_theta=123.0)
    module.base = 124.0
    with pytest.raises(NotRotatableError, match="its own table again"):
        rotated_copy(module, Rotation(scale=2), POSITIONS)


def test_a_second_table_is_refused() -> None:
    module = rotary("default", rope_theta=125.0)
    module.register_buffer("other", torch.rand(POSITIONS, SIZE))
    with pytest.raises(NotRotatableError, match="second table, 'other'"):
        rotated_copy(module, Rotation(scale=2), POSITIONS)


def test_a_copy_that_changes_nothing_is_found_out() -> None:
    module = rotary("default")
    with pytest.raises(NotRotatableError, match="as in the original"):
        prove_rotated(module, rotated_copy(module, Rotation(), POSITIONS))
