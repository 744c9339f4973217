"""PINE, theorem 1: the largest difference of logits over three orders of five documents.

    python examples/reproduce/other_models/theorem_1.py [--model FILE] [--dtype bfloat16]

"No re-assignment" is the control: documents attend to each other, but their order still matters.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from rag_middle import ContextPrompt, RagMiddleModel
from rag_middle.evaluation import MultiDocumentQA, position
from rag_middle.methods import resolve_method
from rag_middle.passages import passages_path
from rag_middle.small_model import default_model

METHODS = {
    "none": resolve_method("none"),
    "pine": resolve_method("pine"),
    "no re-assignment": resolve_method("pine", {"ablation": "no_reassignment"}),
}


def spread(model: RagMiddleModel, prompt: ContextPrompt, method: str) -> float:
    """Of the logits after the prompt, in the order given, reversed, and turned by two."""
    documents = prompt.documents
    orders = (documents, documents[::-1], (*documents[2:], *documents[:2]))
    logits = []
    for order in orders:
        turned = replace(prompt, documents=tuple(order))
        logits.append(model.logits(turned, method=METHODS[method]))
    return max(float((a - b).abs().max()) for a in logits for b in logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder, GGUF file or hub name; by default the small model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--questions", type=int, default=5)
    arguments = parser.parse_args()
    model = RagMiddleModel.from_pretrained(
        arguments.model or default_model(), dtype=arguments.dtype
    )
    task = MultiDocumentQA(data=passages_path(), documents=5)
    prompts = [task.prompt(item, position(0)) for item in task.items(arguments.questions, 0)]
    for method in METHODS:
        spreads = [spread(model, prompt, method) for prompt in prompts]
        print(f"{method}: {min(spreads):.2g} to {max(spreads):.2g}")


if __name__ == "__main__":
    main()
