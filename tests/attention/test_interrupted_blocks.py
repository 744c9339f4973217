"""Ctrl-C while a block begins or ends leaves the model as it was."""

from __future__ import annotations

import contextlib
import sys
from itertools import count

import pytest
from torch import nn
from torch.utils import hooks
from transformers import LlamaConfig

from rag_middle import ContextPrompt, applied
from rag_middle.attention import frequencies, patch, seam, turns, undoing
from rag_middle.methods import PINE
from rag_middle.tokens import encode
from tests.attacks.hostile import report
from tests.attention import test_interrupted_locks as locks
from tests.contract.snapshot import snapshot
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

TOKENIZER = byte_level_bpe()
PROMPT = encode(TOKENIZER, ContextPrompt("", ["the fox", "a river"], "Which?"), template="raw")
STRIDE = 7


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:The model did not run")
def test_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {module.__file__ for module in (frequencies, patch, seam, undoing, contextlib, hooks)}
    monkeypatch.setattr(locks, "FILES", files)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = tiny(LlamaConfig, vocab_size=len(TOKENIZER), num_hidden_layers=2, rope_parameters=rope)
    model: nn.Module = build("interrupted block", config, "sdpa")
    with applied(model, PINE(), [PROMPT]):  # type: ignore[arg-type]
        pass  # what is found out once
    expected, before = snapshot(model), sys.gettrace()  # type: ignore[arg-type]
    places = 0
    for due in count(1, STRIDE):
        interrupting = locks.Interrupting(due)
        try:
            sys.settrace(interrupting)
            with applied(model, PINE(), [PROMPT]):  # type: ignore[arg-type]
                pass
        except KeyboardInterrupt:
            places += 1
        else:
            break
        finally:
            sys.settrace(before)
        assert snapshot(model) == expected, f"place {due}"  # type: ignore[arg-type]
        assert not patch._under_methods
        assert not seam.handlers_in_force()
        assert not turns._open
    assert places > 100
    report(f"{places} places at which Ctrl-C comes as a block begins or ends")
