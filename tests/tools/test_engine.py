"""Forms in processes of their own: what the engine writes there, and how it may end."""

from __future__ import annotations

import copy
import gc
import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tokenizers import normalizers

from rag_middle.tools.engine import Engine, EngineError, Here, Isolated, Vocabulary
from tests.tokenizers import byte_level_bpe, wordpiece

pytest.importorskip("llguidance")
pytestmark = pytest.mark.skipif(not Isolated.possible, reason="no fork here")

#: Each ends the process that compiles it, or would not come back: the stack, time, memory.
TOO_FAR = {
    "deep": "start: r0\n"
    + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(20_000))
    + '\nr20000: "b"',
    "long": 'start: %json {"type": "integer", "multipleOf": 10000019}',
    "at every token": 'start: %json {"type": "string", "allOf": ['
    + ", ".join(f'{{"pattern": "a{{{i},}}.*b{{{i + 3}}}"}}' for i in range(39))
    + "]}",
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    tokenizer = byte_level_bpe()
    backend = tokenizer.backend_tokenizer
    return Vocabulary(backend.to_str(), len(tokenizer) + 1, [tokenizer.eos_token_id])


@pytest.fixture(scope="module")
def isolated(vocabulary: Vocabulary) -> Isolated:
    return Isolated(vocabulary)


def _written(engine: Engine, grammar: str, chosen: int, vocabulary: Vocabulary) -> list[list[int]]:
    """Two texts by the first, the last or another token that is possible."""
    texts = engine.compile(grammar).begin(2)
    rows: list[list[int]] = [[], []]
    for _ in range(40):
        masks = texts.allowed()
        new: list[list[int]] = []
        for row, mask in zip(rows, masks, strict=True):
            if mask is None:
                new.append([])
                continue
            possible = [i for i, bias in enumerate(mask) if bias]
            token = possible[(chosen + len(row) * (row is rows[1])) % len(possible)]
            row.append(token)
            new.append([token])
        if all(texts.read(new)):
            break
    return rows


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "yes" | "no"',
        'start: %json {"type": "object", "properties": {"a": {"enum": ["x", 1]}}}',
        'start: /[a-c]{2,5}/ "." ',
    ],
)
@pytest.mark.parametrize("chosen", [0, 1, -1])
def test_a_process_of_its_own_writes_the_same(
    grammar: str, chosen: int, vocabulary: Vocabulary, isolated: Isolated
) -> None:
    expected = _written(Here(vocabulary), grammar, chosen, vocabulary)
    assert _written(isolated, grammar, chosen, vocabulary) == expected


@pytest.mark.parametrize("grammar", ["start: %json {", 'start: "\ud800"', "start: nowhere"])
def test_what_the_engine_refuses_is_refused_in_the_same_words(
    grammar: str, vocabulary: Vocabulary, isolated: Isolated
) -> None:
    said = []
    for engine in (Here(vocabulary), isolated):
        with pytest.raises(EngineError) as raised:
            engine.compile(grammar)
        said.append(str(raised.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("grammar", "begun"),
    [(r"start: /a[^\s\S]/", 0), ("start: A\nA: /a/ & /b/", 0), ('start: "x" A\nA: /a/ & /b/', 1)],
)
def test_forms_that_nothing_satisfies_are_refused_in_plain_words(
    grammar: str, begun: int, vocabulary: Vocabulary, isolated: Isolated
) -> None:
    for engine in (Here(vocabulary), isolated):
        texts = engine.compile(grammar).begin(1)
        for _ in range(begun):
            [mask] = texts.allowed()
            assert mask is not None
            texts.read([[mask.index(max(mask))]])
        with pytest.raises(EngineError, match=r"^nothing satisfies the form"):
            texts.allowed()


def _optional(count: int) -> dict[str, object]:
    """An object whose properties are all optional."""
    properties = {f"k{index}": {"const": 1} for index in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def test_an_object_has_a_thousand_optional_properties(
    vocabulary: Vocabulary, isolated: Isolated
) -> None:
    for engine in (Here(vocabulary), isolated):
        most = "start: %json " + json.dumps(_optional(1000))
        assert len(_written(engine, most, 0, vocabulary)[0]) == 40
        alternatives = [_optional(700), {**_optional(700), "required": ["k1"]}]
        beyond = "start: %json " + json.dumps({"anyOf": alternatives})
        with pytest.raises(EngineError, match="more than 4,000 ways to go on"):
            _written(engine, beyond, 0, vocabulary)


def test_text_without_a_choice_is_written_whatever_the_tokenizer_makes_of_it(
    vocabulary: Vocabulary, isolated: Isolated
) -> None:
    tokenizer = byte_level_bpe()
    normalizing = copy.deepcopy(tokenizer.backend_tokenizer)
    normalizing.normalizer = normalizers.NFC()
    for text in ("<|im_end|>", "a[INST] </s>b", "e\u0301", "\u0958"):
        grammar = f"start: {json.dumps(text, ensure_ascii=False)}"
        for engine in (isolated, Here(vocabulary._replace(tokenizer=normalizing.to_str()))):
            for row in _written(engine, grammar, 0, vocabulary):
                assert tokenizer.decode(row) == text


def test_a_tokenizer_that_the_engine_cannot_read_is_refused_in_the_same_words() -> None:
    tokenizer = wordpiece()
    vocabulary = Vocabulary(tokenizer.backend_tokenizer.to_str(), len(tokenizer) + 1, [0])
    for engine in (Here, Isolated):
        with pytest.raises(EngineError, match="byte-level or byte-fallback decoders"):
            engine(vocabulary).compile('start: "a"')


@pytest.mark.parametrize("name", TOO_FAR)
def test_a_form_that_takes_the_engine_too_far_takes_nothing_else_with_it(
    name: str, vocabulary: Vocabulary, isolated: Isolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = isolated.compile('start: "yes"').begin(1)
    with pytest.raises(EngineError, match=r"too deep, more than a GiB of memory, or more than 2 s"):
        _written(isolated, TOO_FAR[name], 0, vocabulary)
    if name != "at every token":  # requests for one form come together
        with monkeypatch.context() as patched:
            patched.setattr(isolated, "_hand_over", lambda _: pytest.fail("tried again"))
            with pytest.raises(EngineError, match="too deep"):
                isolated.compile(TOO_FAR[name])
    assert other.allowed()[0] is not None
    assert isolated.compile('start: "no"').begin(1).allowed()[0] is not None


def _descendants() -> set[int]:
    """Processes that this one and its children started, on Linux."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            behind_name = (process / "stat").read_text().rpartition(")")[2]
            parents[int(process.name)] = int(behind_name.split()[1])
    own = {child for child, parent in parents.items() if parent == os.getpid()}
    return own | {child for child, parent in parents.items() if parent in own}


def test_a_process_ends_with_its_form_and_the_last_with_the_engine(vocabulary: Vocabulary) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("no list of processes here")
    before = _descendants()
    engine = Isolated(vocabulary)
    forms = [engine.compile('start: "yes"') for _ in range(3)]
    assert len(_descendants() - before) == 4
    del forms
    _await(lambda: len(_descendants() - before) == 1)
    del engine
    _await(lambda: not _descendants() - before)


def test_a_process_ends_when_its_form_is_refused(vocabulary: Vocabulary) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("no list of processes here")
    before = _descendants()
    engine = Isolated(vocabulary)
    with pytest.raises(EngineError) as raised:
        engine.compile("start: nowhere")
    _await(lambda: len(_descendants() - before) == 1)
    assert raised.value.__traceback__ is not None  # which holds the form


def _await(holds: object) -> None:
    assert callable(holds)
    until = time.monotonic() + 20
    while not holds():
        gc.collect()
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_process_that_forks_is_started_again(vocabulary: Vocabulary) -> None:
    engine = Isolated(vocabulary)
    engine.compile('start: "yes"')
    assert engine._control is not None
    engine._control.close()
    assert engine.compile('start: "yes"').begin(1).allowed()[0] is not None
