"""Killed while it evaluates, calibrates, indexes or keeps states: the next run ends as if not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import report, tries

pytest.importorskip("faiss")

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("killed")
    arguments = [sys.executable, "-m", "tests.attacks.killed", str(folder), str(tries(6))]
    done = subprocess.run(
        arguments,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.timeout(tries(300))
@pytest.mark.parametrize("work", ["evaluating", "calibrating", "indexing", "caching"])
@pytest.mark.slow
def test_a_work_that_was_killed_ends_as_one_that_was_not(
    work: str, outcome: dict[str, dict[str, Any]]
) -> None:
    assert not outcome[work]["wrong"]
    assert outcome[work]["kills"] == tries(6)
    assert outcome[work]["with files"] > 1
    report(f"{work}: {outcome[work]['kills']} kills, files there at {outcome[work]['with files']}")
