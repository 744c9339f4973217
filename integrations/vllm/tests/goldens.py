"""Log-probabilities and answers of the tests' reader, as rag-middle computes them.

Written in the environment of rag-middle, and compared in that of vLLM with what its engine makes of
the same tokens::

    PYTHONPATH=. python integrations/vllm/tests/goldens.py build/vllm/goldens.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from rag_middle import RagMiddleModel, applied
from rag_middle.evaluation.conditions import position
from rag_middle.methods import resolve_method
from rag_middle.tokens import TokenizedPrompt, encode
from tests.reader import READER_LPES, reader_path
from tests.reader.questions import InventedDocuments

#: The methods by name, as the option of the engine gives them.
METHODS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "lpes": {"method": READER_LPES},
    "position_interpolation": {"method": "position_interpolation", "options": {"scale": 1.25}},
    "attention_buckets": {"method": "attention_buckets", "options": {"base_factors": [1.8]}},
}
#: Methods that look at documents, as an engine's option enables them.
DOCUMENT_METHODS: dict[str, dict[str, Any]] = {
    "no_inter_document_attention": {},
    "parallel_context_windows": {},
    "rotor": {},
}
NEW_TOKENS = 12
_DOCUMENTS = (6, 9, 12, 16, 20)  # prompts of 200 to 1000 tokens


def main(path: Path) -> None:
    """Write the file."""
    model = RagMiddleModel.from_pretrained(reader_path())
    prompts = []
    for documents in _DOCUMENTS:
        task = InventedDocuments(documents=documents, facts=2)
        item = task.items(1, seed=documents)[0]
        prompts.append(task.prompt(item, position(documents // 2)))
    tokenized = [encode(model.tokenizer, prompt) for prompt in prompts]
    golden: dict[str, Any] = {
        "prompts": [prompt.input_ids for prompt in tokenized],
        "texts": [
            {
                "documents": [document.render() for document in prompt.documents],
                "suffix": prompt.suffix,
            }
            for prompt in prompts
        ],
    }
    options = METHODS | {
        name: {"method": name, "options": parameters}
        for name, parameters in DOCUMENT_METHODS.items()
    }
    for name, option in options.items():
        method = resolve_method(option["method"], option.get("options"))
        answers = [
            model.generate(prompt, method=method, max_new_tokens=NEW_TOKENS).text.strip()
            for prompt in prompts
        ]
        log_probabilities = [_log_probabilities(model, method, prompt) for prompt in tokenized]
        golden[name] = {"answers": answers, "log_probabilities": log_probabilities}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(golden), encoding="utf-8")


@torch.no_grad()
def _log_probabilities(model: RagMiddleModel, method: Any, prompt: TokenizedPrompt) -> list[float]:
    """Of each token of the prompt as arranged, but the first, given those before it."""
    prompt = prompt.select(method.arrange(prompt, model))
    ids = torch.tensor([prompt.input_ids])
    with applied(model.model, method, [prompt]):
        scores = model.model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    return scores.gather(-1, ids[0, 1:, None])[:, 0].tolist()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
