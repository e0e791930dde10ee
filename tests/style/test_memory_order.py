# SPDX-License-Identifier: Apache-2.0
"""Each atomic operation that orders memory names the one it pairs with."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Each is searched for the declarations of its own atomics.
COMPONENTS = ("protocol/include/kvgpu", "guest/libcuda", "guest/agent", "host/worker")
DEFINITIONS = "barrier.h"  # of the operations on shared words
SHARED = re.compile(r"\b(?:load_acquire|store_release|fence_full)\(")
ORDERED = re.compile(r"memory_order_(?:acquire|release|acq_rel|seq_cst)\b")
OPERAND = re.compile(
    r"(\w+)(?:\[[^][]*\])?(?:\.|->)(?:load|store|exchange|fetch_\w+|compare_\w+)\("
)
SHARED_OPERAND = re.compile(r"\b(?:load_acquire|store_release)\([^,;]*?(\w+)(?:\[[^][]*\])?[,)]")
SHARED_DECLARED = r"uint64_t\*?\s{}(?:;| =)"
DECLARED = r"std::atomic<[^;=]*>\s[^;]*\b{}\b"
PAIR = re.compile(r"pairs\W+with|release by|acquire by", re.IGNORECASE)
COMMENT_LINES = 4  # a comment is at most so long


@dataclass(frozen=True)
class Source:
    path: Path
    lines: list[str]

    def comment_at(self, index: int) -> str:
        """Return the line, the comment that leads to it, and the one that goes on below it."""
        first = index
        while first > 0 and index - first < COMMENT_LINES and "//" in self.lines[first - 1]:
            first -= 1
        last = index + 1
        while last < len(self.lines) and self.lines[last].lstrip().startswith("//"):
            last += 1
        text = " ".join(self.lines[first:last])
        return re.sub(r"\s*//\s*", " ", text)


def sources(component: str) -> list[Source]:
    paths = sorted([*(ROOT / component).rglob("*.h"), *(ROOT / component).rglob("*.cpp")])
    return [
        Source(path, path.read_text().splitlines())
        for path in paths
        if path.name != DEFINITIONS and ".gen." not in path.name
    ]


def statement_before(source: Source, index: int) -> str:
    """Return the line and the two before it: the operand may stand on an earlier line."""
    return " ".join(line.strip() for line in source.lines[max(0, index - 2) : index + 1])


def is_documented(operand: str, declaration: str, component: list[Source]) -> bool:
    """Does the comment at the operand's declaration name the pair?"""
    declared = re.compile(declaration.format(re.escape(operand)))
    return any(
        declared.search(line) and PAIR.search(source.comment_at(number))
        for source in component
        for number, line in enumerate(source.lines)
    )


def undocumented(component: str) -> Iterator[str]:
    found = sources(component)
    everywhere = found + sources(COMPONENTS[0])  # where shared words are declared
    for source in found:
        for index, line in enumerate(source.lines):
            code = line.split("//")[0]
            shared = bool(SHARED.search(code))
            if not (shared or ORDERED.search(code)) or PAIR.search(source.comment_at(index)):
                continue
            operands = (SHARED_OPERAND if shared else OPERAND).findall(
                code if shared else statement_before(source, index)
            )
            declaration = SHARED_DECLARED if shared else DECLARED
            if not (operands and is_documented(operands[-1], declaration, everywhere)):
                yield f"{source.path.relative_to(ROOT)}:{index + 1}: {line.strip()}"


def test_ring_has_atomics_that_are_found() -> None:
    """Guard the next test: a pattern that finds nothing would make it pass."""
    ring = next(s for s in sources("protocol/include/kvgpu") if s.path.name == "ring.h")
    assert sum(bool(SHARED.search(line)) for line in ring.lines) >= 4


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_atomic_names_its_pair(component: str) -> None:
    assert list(undocumented(component)) == []
