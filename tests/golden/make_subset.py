"""Cut the cases shipped with the package out of the full sets of golden cases.

    python tests/golden/make_subset.py FULL_SET [FULL_SET ...] rag_middle/goldens

Kept whole: prompts, parameters, fed tokens, decode rows, the models' weights. Cut: prompt rows, to
at most six per case, the last one among them; hidden states of the search, to the first eight
channels. Expected values are copied, never computed.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

PROMPT_ROWS = 6
CHANNELS = 8  # one of each kind that the case was made of

CASES = (
    # Order of documents, document counts, grouped-query attention, one-token pieces.
    "pine_llama_mha_d2_p1_s1",
    "pine_llama_mha_d5_p6_s8",
    "pine_llama_mha_d5_p6_s8_perm1",
    "pine_llama_mha_d5_p6_s8_perm2",
    "pine_llama_gqa_d20_p1_s9",
    "pine_qwen2_d3_p1_s1",
    # Ratios by awareness and in sequence, all layers and from the third on.
    "mspoe_llama_mha_L2-3_aware_n128",
    "mspoe_llama_mha_Lall_normal_n128",
    "mspoe_llama_gqa_Lall_aware_n128",
    "mspoe_llama_gqa8_L2-3_aware_n256",
    # Every family, factor, number of recomputed rows, scaled values, skipped tokens.
    "ph_llama_mha_eager_d3_L12_f0_r1_cv0_sk0",
    "ph_llama_mha_eager_d3_L12_f0.5_r16_cv1_sk5",
    "ph_llama_mha_eager_d3-17-40_L0123_f0_r16_cv0_sk0",
    "ph_llama_gqa_sdpa_d3_L12_fm1_r16_cv0_sk0",  # records a bug: skipped
    "ph_qwen2_eager_d3_L12_f0_r1_cv1_sk0",
    "ph_mistral_eager_d3_L12_fm1_r16_cv1_sk5",
    "ph_gemma_eager_d3-17-40_L0123_fm1_r1_cv0_sk0",
    "ph_gemma_sdpa_d3_L12_fm1_r16_cv0_sk0",
    "search_odd13_embedding_dropped",
    "pi_llama_mha_pi2",
    "pi_mistral_pi15",
    "lpes_llama_gqa",
    "lpes_mistral",
    "siw_qwen2_d3",
    "siw_mistral_d6",
    "compose_siw_lpes_llama_mha",
    "compose_siw_lpes_llama_gqa",
    # Both orders of one set of documents, grouped-query attention.
    "rotor_llama_mha_lexical_d3_p5_s8",
    "rotor_llama_mha_lexical_d3_p5_s8_perm1",
    # Routers that keep all experts or a few.
    "moice_llama_mha_E7_k7_n90",
    "moice_llama_gqa_E7_k3_n70",
    # Sorted once and several times, best last.
    "attnsort_llama_mha_d3_it1_last",
    "attnsort_llama_gqa_d6_it3_last",
    # Windows that the group divides, does not divide, and that text leaves while it is generated.
    "se_llama_gqa_g4_w16_n97_scale_base",
    "se_llama_mha_g3_w16_n90_w_not_multiple",
    "se_qwen2_g3_w16_n90_w_not_multiple",
    "se_mistral_g2_w32_n30_crosses_window_in_decode",
    # Orders, lengths, one document, indentation.
    "pcw_llama_mha_d3_s9",
    "pcw_llama_mha_d3_s9_perm1",
    "pcw_llama_mha_d6_s6",
    "pcw_llama_mha_d3_s9_right",
    "ape_llama_mha_d3_p5_s8_T09_S09",
    "ape_llama_gqa_d6_p3_s6_T05_S08",
    "ape_llama_mha_d1_p4_s6_T02_S08_single",
    "ape_mistral_d3_p5_s8_T09_S09",  # records a bug: skipped
    # By share and number, templates, number alone.
    "dysco_llama_mha_n96_p0975_k4096",
    "dysco_llama_gqa_n80_p06_k12_template",
    "dysco_llama_gqa_n40_k6",
)

Arrays = dict[str, np.ndarray]


def cut(sets: list[Path], out: Path) -> None:
    """Write ``cases.json``, ``arrays/`` and ``models/`` to `out`.

    Models of the same name are the same in all sets; the first one is copied.
    """
    contents = [json.loads((full / "cases.json").read_text(encoding="utf-8")) for full in sets]
    by_id = {
        case["id"]: (full, case)
        for full, content in zip(sets, contents, strict=True)
        for case in content["cases"]
    }
    for folder in ("arrays", "models"):
        shutil.rmtree(out / folder, ignore_errors=True)
        (out / folder).mkdir(parents=True)
    cases = [_cut_case(dict(by_id[name][1]), by_id[name][0], out) for name in CASES]
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
    cut([Path(each) for each in sys.argv[1:-1]], Path(sys.argv[-1]))
