"""Fits methods to a pretrained model on questions that ``real_models.py`` does not report.

    python benchmarks/real_models_fit.py --model smollm2 --weights DIR --methods lpes siw ...

Writes a profile per method into ``benchmarks/results/real_models/profiles/``, which the other
script takes as ``lpes=profile:.../smollm2_lpes.json``. Candidates are compared by the likelihood of
the answer on 30 questions with the gold document first, in the middle and last; the winner is
checked on 30 others by generated answers. ``lpes_random`` draws as many vectors of factors, a
factor per layer, as the search for a curve has scored, and keeps the best: what a search without
curves finds with the same effort.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any, ClassVar

import torch
from real_models import NEW_TOKENS, RESULTS, question_file

from rag_middle import RagMiddleModel
from rag_middle.calibration import ExampleObjective, calibrate, draw_examples, make_search
from rag_middle.evaluation.tasks.questions import MultiDocumentQA
from rag_middle.methods import LPES

SEARCHES: dict[str, dict[str, Any]] = {
    "lpes": {"population": 24, "parents": 10, "generations": 8},
    "positional_hidden_states": {"texts": 100, "top": 4, "factors": (0.5, -0.5, 1.5, 2.0)},
    "siw": {"dense": (0.5, 0.9, 1.0, 1.2), "sparse": (0.8, 1.0, 1.1, 1.5)},
    "zero_tuning": {},
    "self_extend": {"windows": (256, 512, 1024)},
    "ms_poe": {"ranges": ((1.0, 1.1), (1.0, 1.2), (1.1, 1.3), (1.2, 1.8)), "first_layers": (2, 8)},
}


class Questions(MultiDocumentQA):
    """As they are asked: the first line of a short answer counts."""

    max_new_tokens: ClassVar[int] = NEW_TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="name in the files: smollm2, qwen05, qwen15")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--methods", nargs="+", choices=[*SEARCHES, "lpes_random"], required=True)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--tokenizer", help="folder, where the weights are a file without one")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    folder = arguments.results / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    model = RagMiddleModel.from_pretrained(
        arguments.weights,
        tokenizer=arguments.tokenizer,
        dtype=arguments.dtype,
        device=arguments.device,
    )
    task = Questions(
        data=question_file(fit=True), documents=arguments.documents, distractors="hard"
    )
    tried = 100
    for name in arguments.methods:
        search = make_search(name.removesuffix("_random"), SEARCHES.get(name))
        examples, held_out = draw_examples(
            task, search, questions=arguments.questions, held_out=arguments.questions,
            weights=(1, 1, 1), chat=bool(model.tokenizer.chat_template),
        )  # fmt: skip
        out = folder / f"{arguments.model}_{name}.json"
        if name == "lpes_random":
            objective = ExampleObjective(
                model, examples, criterion="log_likelihood", max_batch_size=arguments.batch
            )
            rng, layers = random.Random(0), model.model.config.num_hidden_layers
            drawn = [
                tuple(rng.randint(10, 20) / 10 for _ in range(layers)) for _ in range(tried)
            ]  # fmt: skip
            scores = [objective(LPES(factors=factors)) for factors in drawn]
            best = max(range(tried), key=scores.__getitem__)
            known = {"factors": drawn[best], "score": scores[best], "tried": tried}
            out.write_text(json.dumps(known) + "\n", encoding="utf-8")
            print(name, known, flush=True)
            continue
        done = calibrate(
            model, search, examples, held_out, criterion="log_likelihood", out=out,
            max_batch_size=arguments.batch, threads_each=torch.get_num_threads(),
            data={"questions": "benchmarks/data/natural_questions.jsonl.gz, lines 1300 on",
                  "documents": arguments.documents},
        )  # fmt: skip
        tried = len(done.profile.to_dict()["search"].get("trace", ())) or tried
        print(name, done.verdict, flush=True)


if __name__ == "__main__":
    main()
