"""Profiles: on disk, as methods, and on models that they were not made for."""

import json
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from rag_middle.attention import applied
from rag_middle.documents import ContextPrompt
from rag_middle.errors import FileFormatError, MethodConfigError
from rag_middle.generation import ProfileWarning, RagMiddleModel, model_facts
from rag_middle.layout import PromptLayout
from rag_middle.methods import APE, METHODS, resolve_method
from rag_middle.profiles import (
    Profile,
    measured_profiles,
    published_profiles,
    read_profile,
    write_profile,
)
from tests.adapters import adapted_llama
from tests.prompts import laid_out
from tests.shipped_profiles import shipping
from tests.tiny_models import build, speaking, tiny
from tests.tokenizers import byte_level_bpe

PROMPT = ContextPrompt("Read.\n\n", ["Paris is in France.", "Lyon lies on a river."], "Where?")
FACTORS = (1.2, 1.5, 1.1)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_level_bpe(bos=True)


@pytest.fixture(scope="module")
def llama(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    return build("profiles", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa")


@pytest.fixture
def profile(llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Profile:
    return Profile(
        method="lpes",
        options={"factors": list(FACTORS)},
        model=model_facts(llama, tokenizer),
        recommended=True,
        seed=3,
        search={"trace": [{"score": 0.1 + 0.2}]},
    )


def saved(profile: Profile, folder: Path, name: str = "profile.json") -> Path:
    write_profile(profile, folder / name)
    return folder / name


def test_a_profile_is_read_as_it_was_written(profile: Profile, tmp_path: Path) -> None:
    assert read_profile(saved(profile, tmp_path)) == profile


def test_a_failed_write_leaves_the_old_profile(profile: Profile, tmp_path: Path) -> None:
    path = saved(profile, tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_profile(replace(profile, scores={"after": float("nan")}), path)
    assert read_profile(path) == profile
    assert len(list(tmp_path.iterdir())) == 1


def test_a_profile_is_a_method_like_any_other(profile: Profile, tmp_path: Path) -> None:
    # Where it comes from stands beside it: no member of a method can be forgotten.
    path = saved(replace(profile, method="ape", options={"temperature": 0.5}), tmp_path)
    method = resolve_method(f"profile:{path}")
    assert method == APE(temperature=0.5)
    assert type(method) is APE
    assert method.provenance is not None
    assert method.provenance.source == f"profile:{path}"
    assert method.provenance.profile.method == "ape"
    assert pickle.loads(pickle.dumps(method)).provenance == method.provenance  # to a worker
    assert replace(method, temperature=0.6).provenance is None  # no longer what was fitted
    assert APE(temperature=0.5).provenance is None


@pytest.mark.parametrize("more", ["", "+siw"])
def test_results_name_what_can_be_chosen_again(
    more: str,
    profile: Profile,
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
) -> None:
    chosen = f"profile:{saved(profile, tmp_path)}{more}"
    model = RagMiddleModel(llama, tokenizer, method=chosen)
    answer = model.generate(PROMPT, max_new_tokens=2)
    assert (answer.method, answer.applied) == (chosen, True)
    assert resolve_method(answer.method) == model.method


def test_results_name_a_preset_and_not_its_method_alone(
    profile: Profile, llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with shipping(tmp_path, {"tiny": profile}):
        model = RagMiddleModel(llama, tokenizer, method="lpes:tiny")
        assert model.generate(PROMPT, max_new_tokens=2).method == "lpes:tiny"
        assert model.score(PROMPT, " Lyon").method == "lpes:tiny"


def test_a_path_may_have_a_plus(profile: Profile, tmp_path: Path) -> None:
    method = resolve_method(f"profile:{saved(profile, tmp_path, 'llama+siw.json')}")
    assert method.name == "lpes"


def test_a_model_of_another_shape_is_refused_without_the_self_check_too(
    profile: Profile, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    config = tiny(LlamaConfig, vocab_size=len(tokenizer), num_hidden_layers=2)
    other, method = build("two layers", config, "sdpa"), f"profile:{saved(profile, tmp_path)}"
    for chosen in (method, f"{method}+siw"):
        with pytest.raises(MethodConfigError, match="decoder layers 3, here 2"):
            RagMiddleModel(other, tokenizer, method=chosen, self_check=False)
        with (
            pytest.raises(MethodConfigError, match="decoder layers 3, here 2"),
            applied(other, resolve_method(chosen), [laid_out(PromptLayout(4))]),
        ):
            pass


def test_other_weights_are_warned_of_once(
    profile: Profile, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = speaking("trained further", tokenizer)
    method = f"profile:{saved(profile, tmp_path)}"
    with pytest.warns(ProfileWarning, match="another version of .*other weights") as told:
        model.generate(PROMPT, method=method, max_new_tokens=1)
    assert told[0].filename == __file__
    model.generate(PROMPT, method=method, max_new_tokens=1)  # a second warning would be an error


@pytest.mark.parametrize(
    ("change", "told"),
    [({"revision": "abc"}, "revision abc, here def"), ({"tokenizer_sha256": "0"}, "tokenizer")],
)
def test_another_revision_or_tokenizer_is_warned_of(
    change: dict[str, Any],
    told: str,
    profile: Profile,
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama.config, "_commit_hash", "def", raising=False)
    path = saved(replace(profile, model=replace(profile.model, **change)), tmp_path)
    with pytest.warns(ProfileWarning, match=told):
        RagMiddleModel(llama, tokenizer, method=f"profile:{path}")


def test_an_adapter_switched_later_is_warned_of(
    profile: Profile, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    network, layer = adapted_llama(vocab_size=len(tokenizer))
    path = saved(replace(profile, model=model_facts(network, tokenizer)), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = RagMiddleModel(network, tokenizer, method=f"profile:{path}")
        model.generate(PROMPT, max_new_tokens=1)
    layer._active_adapter = ["b"]
    with pytest.warns(ProfileWarning, match="other adapters active") as told:
        model.generate(PROMPT, max_new_tokens=1)
    assert told[0].filename == __file__
    model.generate(PROMPT, max_new_tokens=1)  # a second warning would be an error


def test_the_same_model_in_half_precision_is_no_other_version(
    profile: Profile, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    half = build("profiles", tiny(LlamaConfig, vocab_size=len(tokenizer)), "sdpa").bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RagMiddleModel(half, tokenizer, method=f"profile:{saved(profile, tmp_path)}")


def changed(profile: Profile, **changes: Any) -> str:
    return json.dumps({**profile.to_dict(), **changes})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "`rag-middle diagnose --out` wrote"),
        ("{", "cannot be read"),
        ({"version": 2}, "version 2 of the format, and this package reads version 1"),
        ({"model": {"layers": 2}}, "is incomplete or has unknown"),
        ({"model": {"id": "m", "layers": "2"}}, "'layers' should be a int | None"),
        ({"colour": "red"}, "'colour'"),
    ],
)
def test_what_is_no_profile_is_refused(
    content: Any, told: str, profile: Profile, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    if isinstance(content, dict):
        path.write_text(changed(profile, **content), encoding="utf-8")
    elif content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(FileFormatError, match=told):
        resolve_method(f"profile:{path}")


def test_options_that_the_method_refuses_are_told_with_the_profile(
    profile: Profile, tmp_path: Path
) -> None:
    path = saved(replace(profile, options={"factors": [0]}), tmp_path)
    with pytest.raises(MethodConfigError, match=r"profile\.json: .*must be above 0"):
        resolve_method(f"profile:{path}")


def test_a_profile_does_not_lead_to_another_one(profile: Profile, tmp_path: Path) -> None:
    path = saved(replace(profile, method="profile:elsewhere.json"), tmp_path)
    with pytest.raises(MethodConfigError, match="names methods and no presets or files"):
        resolve_method(f"profile:{path}")


@pytest.mark.parametrize("method", METHODS)
def test_no_preset_has_the_name_of_another(method: str) -> None:
    assert not published_profiles(method).keys() & measured_profiles(method).keys()


def test_a_folder_named_as_a_profile_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "lpes.json").write_text("{}")
    with pytest.raises(FileFormatError, match=r"is a folder.*in this folder: lpes\.json"):
        resolve_method(f"profile:{tmp_path}")
