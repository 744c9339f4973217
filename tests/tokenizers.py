"""Tokenizers small enough to build in a test, of the kinds that models really use."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordLevelTrainer, WordPieceTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "Paris is the capital of France. Lyon lies on the river.",
    "Question: which of the documents answers the question? Answer: the first document.",
    "You are a helpful assistant. Use only the documents below.",
    "0 1 2 3 4 5 6 7 8 9 ( ) [ ] { } < > | / \\ : ; , . ! ? ' \" - _ = + * & ^ % $ # @ ~ `",
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: ChatML with tools, as the Hermes and Qwen families write them.
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}"
    "{% endif %}{% for m in turns %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% set content = system + m['content'] if loop.first else m['content'] %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + '[/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)  # leaves a system message out without a word
TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "gemma": GEMMA, "mistral": MISTRAL}

CONTROL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
)
TOOL_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # added, not special


def byte_level_bpe(
    *,
    chat_template: str | None = None,
    bos: bool = False,
    add_prefix_space: bool = False,
    lowercase: bool = False,
    added: Sequence[AddedToken] = (),
    corpus: Sequence[str] = CORPUS,
    learned: int = 360,
) -> PreTrainedTokenizerFast:
    """GPT-2, Llama 3 and Qwen style: every text is encoded without loss, unless lower-cased.

    Tokens: so many ``learned`` from a corpus, and others. Special: ``<s>`` (written before a text
    if ``bos``), ``</s>``, ``<pad>`` and ``CONTROL_TOKENS``; added but not special: ``TOOL_TOKENS``.
    ``added``: more tokens.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=learned, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(corpus, trainer)
    for token in added:
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return _finished(backend, chat_template, bos)


def metaspace_bpe(
    *, chat_template: str | None = None, bos: bool = True, scheme: str = "legacy"
) -> PreTrainedTokenizerFast:
    """Llama 2 and Mistral style: SentencePiece pieces with byte fallback and a dummy space.

    Args:
        chat_template: a Jinja template.
        bos: write ``<s>`` before a text.
        scheme: ``"legacy"`` puts the space before each stretch between control tokens, by a
            normalizer; ``"always"``, ``"first"`` and ``"never"`` are Metaspace's own.
    """
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = BpeTrainer(vocab_size=160, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend = _with_extra_vocabulary(backend, byte_tokens)
    if scheme == "legacy":
        backend.pre_tokenizer = None
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return _finished(backend, chat_template, bos)


def wordlevel(*, chat_template: str | None = None, bos: bool = False) -> PreTrainedTokenizerFast:
    """Whole words; others are ``<unk>``."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return _finished(backend, chat_template, bos)


def sentencepiece(
    *, chat_template: str | None = None, byte_fallback: bool = True
) -> PreTrainedTokenizerBase:
    """A SentencePiece model behind transformers' slow tokenizer, with a dummy space.

    Without ``byte_fallback`` unknown characters are ``<unk>`` and a newline reads as a space.
    """
    from transformers import SentencePieceBackend

    tokenizer = SentencePieceBackend(
        vocab_file=str(_sentencepiece_file(byte_fallback)),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=list(CONTROL_TOKENS),
    )
    tokenizer.add_tokens(list(TOOL_TOKENS))
    tokenizer.chat_template = chat_template
    return tokenizer


def wordpiece(*, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """BERT style: lower-cased, accents stripped, pieces of words marked with ``##``."""
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = WordPieceTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return _finished(backend, chat_template, bos=True)


def unigram(*, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """T5 and Gemma style: likeliest pieces of text that NFKC has normalised and stripped."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return _finished(backend, chat_template, bos=True)


@cache
def _sentencepiece_file(byte_fallback: bool) -> Path:
    import sentencepiece as spm

    prefix = Path(mkdtemp(prefix="rag-middle-")) / "tiny"
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=420 if byte_fallback else 160,
        byte_fallback=byte_fallback,
        normalization_rule_name="identity" if byte_fallback else "nmt_nfkc",
        remove_extra_whitespaces=not byte_fallback,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


def _with_extra_vocabulary(backend: Tokenizer, tokens: list[str]) -> Tokenizer:
    import json

    state = json.loads(backend.to_str())
    vocabulary = state["model"]["vocab"]
    for token in tokens:
        vocabulary.setdefault(token, len(vocabulary))
    return Tokenizer.from_str(json.dumps(state))


def _finished(backend: Tokenizer, chat_template: str | None, bos: bool) -> PreTrainedTokenizerFast:
    special = ["<s>", "</s>", "<pad>", *CONTROL_TOKENS]
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    backend.add_tokens([AddedToken(text, special=False, normalized=True) for text in TOOL_TOKENS])
    if bos:
        backend.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    has_unk = backend.token_to_id("<unk>") is not None
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=chat_template,
        **({"unk_token": "<unk>"} if has_unk else {}),
    )
