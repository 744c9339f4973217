"""Cut the cases shipped with the package out of the full sets of golden cases.

    python tests/golden/make_subset.py FULL_SET [FULL_SET ...] rag_middle/goldens [--add CASE ...]

The cases are those that are there, and the added ones: as few as show every family, option, number
of documents and recorded bug once.
Kept whole: prompts, parameters, fed tokens, decode rows, the models' weights. Cut: prompt rows, to
at most six per case, the last one among them; hidden states of the search, to the first eight
channels. Expected values are copied, never computed.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

PROMPT_ROWS = 6
CHANNELS = 8  # one of each kind that the case was made of

Arrays = dict[str, np.ndarray]


def cut(sets: list[Path], out: Path, added: list[str]) -> None:
    """Write ``cases.json``, ``arrays/`` and ``models/`` to `out`.

    Models of the same name are the same in all sets; the first one is copied.
    """
    shipped = json.loads((out / "cases.json").read_text(encoding="utf-8"))["cases"]
    names = [case["id"] for case in shipped] + added
    contents = [json.loads((full / "cases.json").read_text(encoding="utf-8")) for full in sets]
    by_id = {
        case["id"]: (full, case)
        for full, content in zip(sets, contents, strict=True)
        for case in content["cases"]
    }
    chosen = [by_id[name] for name in dict.fromkeys(names)]  # before anything is removed
    for folder in ("arrays", "models"):
        shutil.rmtree(out / folder, ignore_errors=True)
        (out / folder).mkdir(parents=True)
    cases = [_cut_case(dict(case), full, out) for full, case in chosen]
    for model in sorted({case["model"] for case in cases if case["model"]}):
        (out / model).mkdir()
        for name in ("config.json", "model.safetensors"):
            full = next(full for full in sets if (full / model / name).is_file())
            shutil.copyfile(full / model / name, out / model / name)
    entries = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (version,) = {content["format_version"] for content in contents}
    text = f'{{"format_version":{version},"set":"shipped","cases":[\n{entries}\n]}}\n'
    (out / "cases.json").write_text(text, encoding="utf-8")


def _cut_case(case: dict[str, Any], full: Path, out: Path) -> dict[str, Any]:
    with np.load(full / case["arrays"]) as archive:
        arrays = dict(archive)
    arrays = _cut_rows(arrays) if case["model"] else _cut_channels(case, arrays)
    np.savez_compressed(out / case["arrays"], **arrays)
    return case


def _cut_rows(arrays: Arrays) -> Arrays:
    count = len(arrays["prefill_positions"])
    kept = np.unique(np.linspace(0, count - 1, PROMPT_ROWS).round().astype(int))
    return {
        "prefill_positions": arrays["prefill_positions"][kept],
        "prefill_logits": arrays["prefill_logits"][kept],
        "decode_logits": arrays["decode_logits"],
        **{name: value for name, value in arrays.items() if name.startswith("gate_")},
    }


def _cut_channels(case: dict[str, Any], arrays: Arrays) -> Arrays:
    """Channels are searched one by one, so those left out change nothing about the others."""
    for name in ("mono_layers", "mono_layers_skip100", "fit_and_monotic_per_layer"):
        case[name] = {str(channel): case[name][str(channel)] for channel in range(CHANNELS)}
    case["min_smoothness"] = {
        channel: value
        for channel, value in case["min_smoothness"].items()
        if int(channel) < CHANNELS
    }
    for name in ("candidates", "order_all"):
        case[name] = [channel for channel in case[name] if channel < CHANNELS]
    case["topk"] = {count: case["order_all"][: int(count)] for count in case["topk"]}
    case["planted_kind"] = case["planted_kind"][:CHANNELS]
    return {
        "hidden_states": arrays["hidden_states"][:, :, :CHANNELS],
        "smoothness_all": arrays["smoothness_all"][:, :CHANNELS],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    parser.add_argument("--add", nargs="+", default=[])
    arguments = parser.parse_args()
    cut(arguments.sets, arguments.out, arguments.add)
