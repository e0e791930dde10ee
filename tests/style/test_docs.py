# SPDX-License-Identifier: Apache-2.0
"""Documentation that names a file or a make target names one that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "protocol/PROTOCOL.md"])
TOP_LEVEL = ("benchmarks", "docs", "guest", "host", "packaging", "protocol", "tests")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
MAKE = re.compile(r"\bmake ([a-z][a-z -]*)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_pages_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {page.name for page in PAGES}
    assert len(PAGES) >= 7


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_in_backticks_exist(page: Path) -> None:
    named = [
        text
        for text in IN_BACKTICKS.findall(page.read_text())
        if text.split("/")[0] in TOP_LEVEL and re.fullmatch(r"[\w./-]+", text) and "/" in text
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    quoted = [text for text in IN_BACKTICKS.findall(page.read_text()) if MAKE.match(text)]
    targets = {word for text in quoted for word in MAKE.findall(text)[0].split()}
    missing = [name for name in targets if not re.search(rf"^{name}[ :]", makefile, re.MULTILINE)]
    assert missing == []
