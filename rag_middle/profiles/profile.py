"""What a profile says, and its form in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from rag_middle.errors import ProfileFormatError

__all__ = ["FORMAT", "FORMAT_VERSION", "ModelFacts", "Origin", "Profile"]

FORMAT = "rag-middle profile"
FORMAT_VERSION = 1

#: ``measured``: a search of this package found it; ``published``: a paper says so.
Origin = Literal["measured", "published"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The model that settings were fitted to. What is ``None`` is not known, and not compared.

    Attributes:
        id: name on the hub, or of the folder.
        revision: commit on the hub.
        model_type: the config's.
        layers: decoder layers.
        hidden_size: size of the residual stream.
        heads: query heads of a layer.
        kv_heads: key/value heads of a layer.
        weights_sha256: of all parameters, in the number format they were loaded in.
        weights_sample: digest of some values of every parameter, rounded to bfloat16, which is
            the same in every number format and quick to compare.
        tokenizer_sha256: of vocabulary, merges, added tokens and chat template.
    """

    id: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int | None = None
    kv_heads: int | None = None
    revision: str | None = None
    weights_sha256: str | None = None
    weights_sample: str | None = None
    tokenizer_sha256: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "model_type"):
            _require(self, name, str, optional=False)
        for name in ("layers", "hidden_size"):
            _require(self, name, int, optional=False)
        for name in ("heads", "kv_heads"):
            _require(self, name, int)
        for name in ("revision", "weights_sha256", "weights_sample", "tokenizer_sha256"):
            _require(self, name, str)

    def shape_differences(self, other: ModelFacts) -> list[str]:
        """In what `other` is built otherwise, in words; empty where it is not."""
        told = {
            "model_type": "type",
            "layers": "decoder layers",
            "hidden_size": "hidden size",
            "heads": "query heads",
            "kv_heads": "key/value heads",
        }
        return [
            f"{words} {mine!r}, here {theirs!r}"
            for name, words in told.items()
            if (mine := getattr(self, name)) != (theirs := getattr(other, name))
            and None not in (mine, theirs)
        ]

    def version_differences(self, other: ModelFacts) -> list[str]:
        """In what `other` is another version of the same build, in words."""
        found = []
        if None not in (self.revision, other.revision) and self.revision != other.revision:
            found.append(f"revision {self.revision}, here {other.revision}")
        for name, words in (("weights_sample", "weights"), ("tokenizer_sha256", "tokenizer")):
            mine, theirs = getattr(self, name), getattr(other, name)
            if None not in (mine, theirs) and mine != theirs:
                found.append(f"other {words}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Fitted settings of one method, and where they come from.

    Attributes:
        method: registered name.
        options: the method's parameters, in JSON's types.
        model: what they were fitted to.
        origin: see `Origin`.
        note: a sentence for people, such as "from the paper, not measured by us".
        recommended: whether held-out prompts were answered better than without the method; None
            where nobody measured.
        seed: of the search.
        software: versions by package.
        data: what the search and the held-out check used, with digests.
        search: settings and trace.
        scores: before and after, of the search and by position of the held-out check.
    """

    method: str
    options: Mapping[str, Any]
    model: ModelFacts
    origin: Origin = "measured"
    note: str = ""
    recommended: bool | None = None
    seed: int | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("method", "note"):
            _require(self, name, str, optional=False)
        for name in ("options", "software", "data", "search", "scores"):
            _require(self, name, Mapping, optional=False)
        if not isinstance(self.model, ModelFacts):
            raise ProfileFormatError(f"'model' should be an object, got {self.model!r}.")
        _require(self, "recommended", bool)
        _require(self, "seed", int)
        if self.origin not in get_args(Origin):
            raise ProfileFormatError(
                f"'origin' should be one of {', '.join(get_args(Origin))}, got {self.origin!r}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with format and version."""
        return {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, content: object) -> Profile:
        """The profile of plain data.

        Raises:
            ProfileFormatError: no profile, one of another version, or one that lacks something.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ProfileFormatError(
                f"This is no profile: its 'format' is not {FORMAT!r}. Write one with `rag-middle "
                "calibrate`."
            )
        if content.get("version") != FORMAT_VERSION:
            raise ProfileFormatError(
                f"This profile has version {content.get('version')!r} of the format, and this "
                f"package reads version {FORMAT_VERSION}. Use the package version that wrote it, "
                "or calibrate again."
            )
        body = {name: value for name, value in content.items() if name not in _ENVELOPE}
        model = body.get("model")
        if not isinstance(model, dict):
            raise ProfileFormatError(f"'model' should be an object, got {model!r}.")
        profile: Profile = _made(cls, {**body, "model": _made(ModelFacts, model)})
        return profile


_ENVELOPE = ("format", "version")


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    known = [each.name for each in fields(kind)]
    strange = [name for name in values if name not in known]
    if strange:
        raise ProfileFormatError(
            f"A profile has no field {strange[0]!r}; it has {', '.join(known)}."
        )
    try:
        return kind(**values)
    except TypeError as error:  # a field that has no default is missing
        raise ProfileFormatError(f"A profile needs more than this: {error}.") from error


def _require(owner: object, name: str, kind: type, *, optional: bool = True) -> None:
    value = getattr(owner, name)
    if value is None and optional:
        return
    # True is a whole number to Python, and no number of layers.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ProfileFormatError(f"{name!r} should be a {kind.__name__}, got {value!r}.")
