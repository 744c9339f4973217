"""The documentation builds as a site without warnings, and needs nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytest.importorskip("mkdocs", reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. Broken links and undocumented parameters end the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_pages_load_files_of_the_site_only(site: Path) -> None:
    loaded = re.compile(r"""<(?:link|script|img)\b[^>]*?(?:href|src)=["']?([^"'\s>]+)""")
    missing = set()
    for page in site.rglob("*.html"):
        for target in loaded.findall(page.read_text(encoding="utf-8")):
            if target.startswith("data:"):
                continue
            path = site / target.lstrip("/") if page.name == "404.html" else page.parent / target
            if not Path(re.sub(r"[?#].*", "", str(path))).is_file():
                missing.add(target)
    assert not missing
