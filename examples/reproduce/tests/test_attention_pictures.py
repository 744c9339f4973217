"""Pictures of attention: what is averaged, what the rows are, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rag_middle_reproduce.attention_view import document_attention

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.evaluation import position

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
pytest.importorskip("matplotlib")
from rag_middle_reproduce import attention
from rag_middle_reproduce.__main__ import main as ask
from rag_middle_reproduce.attention import Picture, main, pictures
from rag_middle_reproduce.config import (
    AttentionConfig,
    EvaluationConfig,
    ModelConfig,
    TaskConfig,
    read_config,
)

PAIRS = TaskConfig(task="key_value_retrieval", options={"keys": 3, "identifier_characters": 6})
CONFIG = EvaluationConfig(
    title="Attention",
    models=(ModelConfig(name="a/model"),),
    tasks=(PAIRS,),
    methods=("ms_poe",),
    measurement={"limit": 2, "positions": [0, 2], "template": "raw"},
    attention=AttentionConfig(show="gold", layers=(1, 2)),
)


def drawn(picture: Picture) -> NDArray[np.float64]:
    """What the first panel shows, in per cent."""
    return np.asarray(picture.draw().axes[0].images[0].get_array())


def test_rows_are_gold_positions_and_questions_are_averaged(model: RagMiddleModel) -> None:
    plain, scaled = pictures(CONFIG, lambda entry: model, Path())
    assert (plain.method, scaled.method, plain.prompts) == ("none", "ms_poe", 2)
    task = PAIRS.make(Path(), CONFIG.models[0])
    prompts = [task.prompt(item, position(2)) for item in task.items(2, 0)]
    view = document_attention(model, prompts, method="ms_poe", template="raw").chosen([1, 2])
    assert np.allclose(scaled.by_gold[2].by_head, view.by_head)
    assert np.allclose(drawn(scaled)[1], 100 * view.documents.mean(axis=0))
    assert scaled.to_dict()["layers"] == (1, 2)


@pytest.mark.parametrize(("show", "rows"), [("layers", 3), ("heads", 4)])
def test_rows_are_layers_or_heads_and_gold_positions_are_averaged(
    model: RagMiddleModel, show: str, rows: int
) -> None:
    config = replace(CONFIG, attention=AttentionConfig(show=show))  # type: ignore[arg-type]
    picture, _ = pictures(config, lambda entry: model, Path())
    assert drawn(picture).shape == (rows, 3)
    mean = (picture.by_gold[0].by_head + picture.by_gold[2].by_head) / 2
    assert np.allclose(picture.view.by_head, mean)


def test_the_command_draws_what_is_asked_for(
    model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RagMiddleModel, "from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(attention, "_DEFAULT", replace(CONFIG, attention=None))
    chosen = "--model m --method pine --show heads --layers 0,2 --heads 1-3 --limit 1".split()
    main([*chosen, "--out", str(tmp_path)])
    plain, pine = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))
    assert (plain["method"], pine["method"], pine["layers"]) == ("none", "pine", [0, 2])
    assert np.shape(pine["documents"]["0"]) == (2, 3, 3)
    assert (tmp_path / "m--key_value_retrieval--pine.png").is_file()
    with pytest.raises(SystemExit, match="layers 0 to 2"):
        main([*chosen, "--layers", "7", "--out", str(tmp_path)])


def test_a_file_says_whether_it_asks_or_draws(model: RagMiddleModel, tmp_path: Path) -> None:
    path = tmp_path / "figure.yaml"
    path.write_text(
        "{title: A figure, models: [{name: m}], tasks: [{task: own}], attention: {show: heads}}"
    )
    with pytest.raises(SystemExit, match=r"run python -m rag_middle_reproduce\.attention"):
        ask([str(path)])
    with pytest.raises(ConfigError, match="asks questions"):
        next(pictures(replace(CONFIG, attention=None), lambda entry: model, Path()))
    path.write_text(path.read_text().replace("heads", "lines"))
    with pytest.raises(ConfigError, match="layers, heads, gold"):
        read_config(path)
