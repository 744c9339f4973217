"""Golden cases on disk: ``cases.json``, ``models/<name>/`` and ``arrays/<case>.npz``.

The format is described in the README of the shipped directory (:func:`shipped_directory`).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_middle.errors import FileFormatError, PromptError
from rag_middle.files import open_regular
from rag_middle.layout import PromptLayout
from rag_middle.plain_data import parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT_VERSION = 1


def shipped_directory() -> Path:
    """Folder of the golden cases of this package."""
    return Path(str(resources.files("rag_middle"))) / "goldens"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A prompt, the tokens fed after it, and the logits that were recorded.

    Attributes:
        input_ids: ``l`` prompt tokens.
        layout: spans of the documents; none where the case has no segments.
        generated_tokens: ``m`` tokens, fed one by one after the prompt.
        positions: ``[P]`` prompt positions whose logits were kept.
        prefill_logits: ``[P, vocabulary]``, of the forward pass over the prompt.
        decode_logits: ``[m, vocabulary]``, row ``i`` after feeding ``generated_tokens[i]``.
    """

    model: Path
    input_ids: tuple[int, ...]
    layout: PromptLayout
    generated_tokens: tuple[int, ...]
    positions: NDArray[np.int64]
    prefill_logits: NDArray[np.float32]
    decode_logits: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One entry of ``cases.json``.

    Attributes:
        id: unique in its directory.
        method: what was run, under the name it has in the file.
        params: its parameters, likewise.
        tags: remarks that matter to a comparison.
        directory: of the ``cases.json``; paths in it are relative to this.
        fields: the whole entry.
    """

    id: str
    method: str
    params: Mapping[str, Any]
    tags: frozenset[str]
    directory: Path
    fields: Mapping[str, Any]

    def recorded(self) -> RecordedRun:
        """What a run of a model gave.

        Raises:
            FileFormatError: tokens, spans, positions and model do not fit together.
            KeyError: an array is missing.
        """
        input_ids = self._ints("input_ids")
        tokens = self._ints("generated_tokens")
        if not input_ids:
            raise self.malformed("input_ids is empty")
        model = self._model()
        arrays = self.arrays()
        positions, decode = arrays["prefill_positions"], arrays["decode_logits"]
        if positions.min() < 0 or positions.max() >= len(input_ids):
            raise self.malformed(f"prefill_positions reach outside its {len(input_ids)} tokens")
        if len(decode) != len(tokens):
            raise self.malformed(
                f"decode_logits should be [{len(tokens)}, vocabulary], got {decode.shape}"
            )
        return RecordedRun(
            model=model,
            input_ids=input_ids,
            layout=self._layout(len(input_ids)),
            generated_tokens=tokens,
            positions=positions.astype("int64"),
            prefill_logits=arrays["prefill_logits"],
            decode_logits=decode,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the case's ``.npz`` file, by name.

        Raises:
            FileFormatError: the file is missing or damaged.
        """
        import numpy as np

        path = self._path("arrays")
        try:
            # Opened here, because numpy leaves a file open that is no archive.
            with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
                return dict(archive)
        except FileNotFoundError as error:
            raise self.malformed(f"its arrays {path} are missing") from error
        except (TypeError, OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise self.malformed(f"{path} cannot be read: {error}") from error

    def malformed(self, problem: str) -> FileFormatError:
        """The error to raise about this case."""
        return FileFormatError(
            f"Golden case {self.id!r} in {self.directory}: {problem.rstrip('.')}. "
            "Copy the directory again, whole, or remove the case from cases.json."
        )

    def _ints(self, name: str) -> tuple[int, ...]:
        values = self.fields.get(name)
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise self.malformed(f"{name} should be a list of integers")
        return tuple(values)

    def _model(self) -> Path:
        """Its folder."""
        folder = self._path("model")
        if not (folder / "config.json").is_file():
            raise self.malformed(f"its model {folder} has no config.json")
        return folder

    def _path(self, name: str) -> Path:
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise self.malformed(f"{name} should be a path relative to cases.json, got {value!r}")
        return (self.directory / value).resolve()

    def _layout(self, length: int) -> PromptLayout:
        segments = self.fields.get("segments")
        if segments is None:
            return PromptLayout(length=length)
        try:
            documents = tuple((int(start), int(end)) for start, end in segments["docs"])
            layout = PromptLayout(length=length, documents=documents)
            edges = ([0, layout.prefix_tokens], [layout.suffix_start, length])
            if edges != (segments["prefix"], segments["suffix"]):
                raise PromptError("prefix, docs and suffix do not make up the prompt.")
        except (KeyError, TypeError, ValueError) as error:
            raise self.malformed(f"segments are wrong: {error}") from error
        return layout


def load_cases(directory: str | Path) -> tuple[GoldenCase, ...]:
    """Read ``cases.json``; arrays are read when a case is run.

    Raises:
        FileFormatError: there is none, or it is not of this format.
    """
    directory = Path(directory)
    path = directory / "cases.json"
    try:
        with open_regular(path) as file:
            content = parse_json(file.read())
    except FileNotFoundError as error:
        problem = "has no cases.json" if os.path.isdir(directory) else "is not a directory"
        raise _unreadable(directory, problem) from error
    except (OSError, ValueError) as error:
        raise _unreadable(directory, f"has a cases.json that cannot be read ({error})") from error
    if not isinstance(content, dict) or not isinstance(content.get("cases"), list):
        raise _unreadable(directory, "has a cases.json without a list of cases")
    if content.get("format_version") != FORMAT_VERSION:
        raise _unreadable(
            directory,
            f"has format_version {content.get('format_version')!r}, this version of rag-middle "
            f"reads {FORMAT_VERSION}",
        )
    if not content["cases"]:
        raise _unreadable(directory, "has no cases")
    cases: dict[str, GoldenCase] = {}
    for index, fields in enumerate(content["cases"]):
        try:
            case = GoldenCase(
                id=fields["id"],
                method=fields["method"],
                params=dict(fields["params"]),
                tags=frozenset(fields["tags"]),
                directory=directory,
                fields=fields,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(
                directory, f"has a case (number {index}) without id, method, params or tags"
            ) from error
        if case.id in cases:
            raise case.malformed("the id is used twice")
        cases[case.id] = case
    return tuple(cases.values())


def _unreadable(directory: Path, problem: str) -> FileFormatError:
    return FileFormatError(
        f"{str(directory)!r} {problem}. Pass a directory with cases.json, models/ and arrays/, or "
        "none to use the cases shipped with the package."
    )
