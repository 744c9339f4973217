"""What SmolLM2 answers under every method: measured here, recorded once, compared from then on.

``python -m tests.real_model.recording`` adds the methods that `RECORDED` lacks. Delete from it what
is to be measured anew: only where answers are meant to change.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rag_middle import ContextPrompt, Document, RagMiddleModel
from rag_middle.files import file_sha256, write_files
from rag_middle.generation.identity import software
from rag_middle.methods import METHODS
from rag_middle.small_model import default_model

FOLDER = Path(__file__).parent
RECORDED = FOLDER / "recorded.json"
NEW_TOKENS = 16
#: Greedy tokens are recorded up to the first that wins by less: another CPU may choose otherwise.
LEAST_MARGIN = 0.01  # of log-probabilities
#: Options of methods that have no defaults, or whose defaults do nothing at this length.
OPTIONS: dict[str, dict[str, Any]] = {
    "positional_hidden_states": {"channels": (180,), "factor": 0.5, "layers": (10, 11, 12)},
    "lpes": {"factors": tuple(1 + layer / 100 for layer in range(30))},
    "zero_tuning": {"factor": 1.3},
    "position_interpolation": {"scale": 1.2},
    "moice": {"routers": "uniform"},
    "measured_order": {"accuracy": (0.3, 0.2, 0.1, 0.4, 0.5)},
    "self_extend": {"group": 2, "window": 128},
    "dysco": {"heads": ((8, 0), (14, 3), (20, 5), (25, 7))},
}


def method_names() -> list[str]:
    """Every registered method but compositions, which have no behaviour of their own."""
    return [name for name in METHODS if name != "compose"]


def prompts(order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> tuple[list[ContextPrompt], list[str]]:
    """Four questions with five documents each, and their answers.

    The documents are passages of `rag_middle.passages` (CC BY-SA 3.0): the gold one, and four that
    share most words with the question and hold no answer.
    """
    asked = json.loads((FOLDER / "prompts.json").read_bytes())
    return [
        ContextPrompt(
            prefix="Answer the question briefly from the documents.\n\n",
            documents=[Document(**question["documents"][index]) for index in order],
            suffix=f"Question: {question['question']}?",
        )
        for question in asked
    ], [question["answer"] for question in asked]


def load() -> RagMiddleModel:
    """The default model; its GGUF file, as other weights round otherwise."""
    return RagMiddleModel.from_pretrained(
        default_model(), dtype="float32", device="cpu", self_check=False
    )


def likelihoods(
    model: RagMiddleModel,
    method: str,
    *,
    order: tuple[int, ...] = (0, 1, 2, 3, 4),
    which: Sequence[int] = (0, 1, 2, 3),
    batch: int = 4,
) -> list[float]:
    """Log-likelihood of the answer to each of these questions."""
    scored = model.score_batch(
        *([texts[index] for index in which] for texts in prompts(order)),
        method=method,
        method_options=OPTIONS.get(method),
        max_batch_size=batch,
    )
    return [score.total for score in scored]


def greedy_prompt(method: str) -> int:
    """The question that is answered under a method; a new one is recorded after the others."""
    names = list(json.loads(RECORDED.read_bytes())["methods"])
    return (names.index(method) if method in names else len(names)) % 4


def greedy(model: RagMiddleModel, method: str) -> dict[str, Any]:
    """Tokens of one question's greedy answer, and by how much the closest of them won."""
    answer = model.generate(
        prompts()[0][greedy_prompt(method)],
        method=method,
        method_options=OPTIONS.get(method),
        max_new_tokens=NEW_TOKENS,
        logprobs=True,
        top_logprobs=2,
    )
    margins = [
        token.alternatives[0][1] - token.alternatives[1][1] for token in answer.log_probabilities
    ]
    close = next((i for i, margin in enumerate(margins) if margin < LEAST_MARGIN), len(margins))
    return {
        "tokens": list(answer.token_ids[:close]),
        "text": model.tokenizer.decode(answer.token_ids[:close], skip_special_tokens=True),
        "margin": round(min(margins[:close], default=0.0), 4),
    }


def main() -> None:
    """Measure the methods that are not recorded, and write each into `RECORDED`."""
    model = load()
    recorded: dict[str, Any] = {
        "model": {"file": Path(default_model()).name, "sha256": file_sha256(default_model())},
        "software": software(torch.device("cpu")),
        "methods": json.loads(RECORDED.read_bytes())["methods"],
    }
    for name in [name for name in method_names() if name not in recorded["methods"]]:
        of_method = {"likelihoods": likelihoods(model, name), **greedy(model, name)}
        recorded["methods"][name] = of_method
        write_files(FOLDER, {RECORDED.name: json.dumps(recorded, indent=1).encode() + b"\n"})
        print(name, of_method, flush=True)


if __name__ == "__main__":
    main()
