"""Train the bundled reader: ``python -m training.train_reader``.

A LLaMA of 1.2 million parameters, on generated documents, on the CPU. It may be stopped at any
time and continues from its last checkpoint. A stage of the curriculum ends when the model answers
most of its questions, so the order of steps is the same for the same seed, whatever the machine.

``--start FOLDER --stage N`` goes on from the weights of another reader, whose names and tokenizer
may differ: what finding and copying take is in the layers, which took most of the training.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from training.data import COPIED, RECALLED, VALUE, Rows, Stage
from training.tokenizer import load_tokenizer

BATCH_TOKENS = 6144
WARM_UP = 60
DECAY_SHARE = 0.3
CHECKPOINT_EVERY = 100
FEWEST_STEPS = 100

# From binding alone to documents: repeats and recall first, then facts stated twice in one way, in
# two ways, in all; prompts with more documents throughout.
STAGES = (
    Stage(
        128,
        (1, 1),
        copying=0.9,
        key_tokens=(1, 1),
        between=0,
        alphabet=96,
        questions=2,
        judged_by="recalled",
        learnt_at=0.85,
    ),
    Stage(
        160,
        (1, 2),
        copying=0.6,
        repeats=0.6,
        restated=0.3,
        phrasings=1,
        key_tokens=(1, 1),
        alphabet=384,
        questions=2,
        judged_by="recalled",
        learnt_at=0.64,
    ),
    Stage(160, (1, 3), copying=0.3, repeats=0.5, restated=0.5, phrasings=1, alphabet=384),
    Stage(160, (1, 3), copying=0.15, restated=0.5, phrasings=2, key_tokens=(1, 2), alphabet=384),
    Stage(192, (2, 4), copying=0.1, restated=0.4, key_tokens=(1, 2), alphabet=1500),
    Stage(256, (3, 6), copying=0.05, restated=0.25, between=3, names=0.6),
    Stage(320, (3, 8), facts=(1, 1, 2), copying=0.05, restated=0.05, plain=0.6, learnt_at=0.95),
    Stage(448, (4, 12), facts=(1, 1, 2), copying=0.05, plain=0.5),
)


@dataclass
class Progress:
    """Where the training stands."""

    step: int = 0
    stage: int = 0
    tokens: int = 0
    seconds: float = 0.0
    right: float = 0.0
    recalled: float = 0.0
    copied: float = 0.0
    stage_step: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=Path("build/reader"))
    parser.add_argument("--start", type=Path, help="a reader whose weights to start from")
    parser.add_argument("--stage", type=int, default=0, help="the first stage, from 0")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    train(arguments.folder, arguments.steps, arguments.seed, arguments.start, arguments.stage)


def new_model(vocabulary: int, bos: int, eos: int, pad: int) -> LlamaForCausalLM:
    """The reader's architecture, with random weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=bos,
            eos_token_id=eos,
            pad_token_id=pad,
        )
    )


def train(
    folder: Path, steps: int, seed: int, start: Path | None = None, first_stage: int = 0
) -> None:
    """Train up to step ``steps``, writing log, checkpoints and, at the end, the model."""
    torch.manual_seed(seed)
    tokenizer = load_tokenizer(folder)
    model = new_model(
        len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    )
    if start:
        _take_weights(model, tokenizer, start)
    optimizers = _optimizers(model)
    progress = _restored(folder, model, optimizers) or Progress(stage=first_stage)
    backbone = torch.compile(model.model, dynamic=False)
    while progress.step < steps:
        stage = STAGES[progress.stage]
        # A generator per step: a run that was stopped draws what it would have drawn.
        rows = Rows(tokenizer, f"{seed}:{progress.step}")
        begun = time.perf_counter()
        ids, weights = rows.batch(stage, BATCH_TOKENS // stage.length)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * _rate(progress.step, steps)
        loss, right, recalled, copied = _step(model, backbone, optimizers, ids, weights)
        progress.step += 1
        progress.stage_step += 1
        progress.tokens += ids.size
        progress.seconds += time.perf_counter() - begun
        smooth = min(0.98, progress.stage_step / (progress.stage_step + 10))
        progress.right = _smoothed(progress.right, right, smooth)
        progress.recalled = _smoothed(progress.recalled, recalled, smooth)
        progress.copied = _smoothed(progress.copied, copied, smooth)
        if progress.step % 20 == 0:
            _log(folder, progress, loss)
        learnt = getattr(progress, stage.judged_by) > stage.learnt_at
        last = progress.stage == len(STAGES) - 1
        if learnt and not last and progress.stage_step > FEWEST_STEPS:
            progress.stage, progress.stage_step = progress.stage + 1, 0
        if progress.step % CHECKPOINT_EVERY == 0 or progress.step == steps:
            _save_checkpoint(folder, model, optimizers, progress)
    model.to(torch.bfloat16).save_pretrained(str(folder), safe_serialization=True)


def _take_weights(model: LlamaForCausalLM, tokenizer: Any, start: Path) -> None:
    """All of another reader's weights; a token that it lacks is the mean of those it is made of."""
    other = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    other_tokenizer = load_tokenizer(start)
    rows = other.model.embed_tokens.weight.data
    known = other_tokenizer.get_vocab()
    model.model.layers.load_state_dict(other.model.layers.state_dict())
    model.model.norm.load_state_dict(other.model.norm.state_dict())
    for token, index in tokenizer.get_vocab().items():
        parts = [known[token]] if token in known else _parts(token, known)
        model.model.embed_tokens.weight.data[index] = rows[parts].mean(0)


def _parts(token: str, known: dict[str, int]) -> list[int]:
    """Ids of the longest known tokens that make up a token, from its start."""
    parts = []
    while token:
        end = next(end for end in range(len(token), 0, -1) if token[:end] in known)
        parts.append(known[token[:end]])
        token = token[end:]
    return parts


def _step(
    model: LlamaForCausalLM,
    backbone: Any,
    optimizers: list[torch.optim.Optimizer],
    ids: Any,
    weights: Any,
) -> tuple[float, float, float, float]:
    """One step: the loss; the shares right of values, recalled values and copied tokens."""
    tokens, weighing = torch.from_numpy(ids), torch.from_numpy(weights)[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = backbone(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
        counted = weighing > 0
        logits = model.lm_head(hidden[counted])
    target, weight = tokens[:, 1:][counted], weighing[counted]
    losses = nn.functional.cross_entropy(logits.float(), target, reduction="none")
    loss = (losses * weight).sum() / weight.sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    hits = (logits.argmax(-1) == target).float()
    shares = (_mean(hits[weight == kind]) for kind in (VALUE, RECALLED, COPIED))
    return loss.item(), *shares


def _mean(values: torch.Tensor) -> float:
    """The mean; not a number where there is nothing to take it of."""
    return values.mean().item()


def _smoothed(old: float, new: float, smooth: float) -> float:
    return old if math.isnan(new) else smooth * old + (1 - smooth) * new


def _optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _rate(step: int, steps: int) -> float:
    """Learning rate as a share: warm-up, constant, then down to nothing."""
    left = (steps - step) / max(1, int(steps * DECAY_SHARE))
    return min(1.0, (step + 1) / WARM_UP, left)


def _log(folder: Path, progress: Progress, loss: float) -> None:
    record = {**asdict(progress), "loss": round(loss, 4)}
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps(record) + "\n")
    speed = progress.tokens / max(1e-9, progress.seconds)
    print(
        f"step {progress.step} stage {progress.stage} loss {loss:.3f} right {progress.right:.3f} "
        f"recalled {progress.recalled:.3f} copied {progress.copied:.3f} {speed:,.0f} tokens/s",
        flush=True,
    )


def _save_checkpoint(
    folder: Path,
    model: LlamaForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(progress),
    }
    unfinished = folder / "checkpoint.tmp"
    torch.save(state, unfinished)
    unfinished.replace(folder / "checkpoint.pt")


def _restored(
    folder: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer]
) -> Progress | None:
    path = folder / "checkpoint.pt"
    if not path.is_file():
        return None
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Progress(**state["progress"])


if __name__ == "__main__":
    main()
