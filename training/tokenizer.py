"""The reader's tokenizer: byte-level BPE of 3072 tokens, trained on generated documents.

Two rules make copying easy to learn. Digits come in pairs. The space before a capitalised word is a
token of its own, so that a name has the same tokens after a space and after a parenthesis.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rag_middle.reader.facts import draw_entries
from rag_middle.reader.names import name_word
from training.wording import INSTRUCTIONS, filler

VOCABULARY = 3072
BOS, END, PAD, USER, SYSTEM, ASSISTANT = (
    "<s>", "<|end|>", "<|pad|>", "<|user|>", "<|system|>", "<|assistant|>",
)  # fmt: skip

# Alternatives in order: the space before a capital; words; pairs of digits; line ends; the rest.
_PIECES = r" (?=\p{Lu})|\p{Lu}+(?!\p{Ll})|\p{Lu}\p{Ll}*| ?\p{Ll}+| ?\d{1,2}|\n+| ?[^\s\p{L}\d]|\s"

# Roles other than these three are refused rather than guessed. The answer follows <|assistant|>
# at once: its first token is the first of the title.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{{ '<|user|>' }}"
    "{%- elif message['role'] == 'assistant' -%}{{ '<|assistant|>' }}"
    "{%- elif message['role'] == 'system' -%}{{ '<|system|>' }}"
    "{%- else -%}{{ raise_exception('The reader knows the roles system, user and assistant, '"
    " 'not ' ~ message['role'] ~ '.') }}"
    "{%- endif -%}"
    "{{ message['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def train_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Train on texts like the reader's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, END, USER, SYSTEM, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(random.Random(seed)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in ``folder``, trained and saved there first if there is none."""
    if not (folder / "tokenizer.json").is_file():
        train_tokenizer().save_pretrained(str(folder))
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def _texts(rng: random.Random) -> Iterator[str]:
    for _ in range(4000):
        for entry in draw_entries(rng, "train", 4, facts_each=(1, 2), same_attribute=False):
            yield entry.text
            yield entry.facts[0].question(rng)
    for _ in range(20000):
        yield name_word(rng, "train")
    for instruction in INSTRUCTIONS:
        yield from [instruction] * 20
    yield from ["\n\n", "\n\nQuestion: \nAnswer:", "Query: "] * 5000
    for _ in range(500):
        yield filler(rng, 30)
