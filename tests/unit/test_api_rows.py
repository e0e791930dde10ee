# SPDX-License-Identifier: Apache-2.0
"""api.toml has each entry point of the driver exactly once, and users can read what it says."""

import re
import tomllib
from pathlib import Path

import pytest

from kvgpu.protocol.generator import __main__ as generator
from kvgpu.protocol.generator.model import GeneratorError, Model
from kvgpu.protocol.generator.parse import load

ROOT = Path(__file__).resolve().parents[2]
EXPORTED = set((ROOT / "tests/data/names-cuda13.txt").read_text().split())
API = ROOT / "protocol/api.toml"
PAGE = ROOT / "docs/compatibility.md"


def headers() -> Path:
    (found,) = ROOT.glob(".venv/lib/python3.*/site-packages/nvidia/cu13/include")
    return found


@pytest.fixture(scope="module")
def model() -> Model:
    return load(ROOT, headers())


def load_changed(tmp_path: Path, old: str, new: str) -> Model:
    """Load the model with api.toml changed in one place."""
    text = API.read_text()
    assert old in text
    for folder in ("protocol", "tests/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "protocol/api.toml").write_text(text.replace(old, new, 1))
    for name in ("protocol/inputs.lock", "tests/data/names-cuda13.txt", "tests/data/opcodes.tsv"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return load(tmp_path, headers())


def test_every_entry_point_has_one_row() -> None:
    """Checked here without the generator: the names stand in the file, once each."""
    table = tomllib.loads(API.read_text())
    listed = [*table.pop("refused"), *table.pop("twins")]
    listed += [name for name in table if name not in ("control", "reasons")]
    assert len(EXPORTED) == 676
    assert sorted(listed) == sorted(EXPORTED)


def test_every_header_function_has_a_row(model: Model) -> None:
    assert len(model.functions) == 634
    assert set(model.functions) <= set(model.by_name) | set(model.api.refused) | set(
        model.api.twins
    )


def test_every_refusal_has_a_reason_and_every_served_row_a_class(model: Model) -> None:
    assert {name for name, why in model.refused.items() if len(why) < 15} == set()
    assert {row.name for row in model.rows if not row.cls} == set()


def test_no_entry_point_is_both_served_and_refused(model: Model) -> None:
    served = {name for name in EXPORTED if name in model.by_name or model.twin_of(name)}
    assert served.isdisjoint(model.refused)
    assert served | set(model.refused) == EXPORTED


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('cuGLInit = "graphics"\n', "", "no row for .*cuGLInit"),
        ('cuGLInit = "graphics"', 'cuGLInited = "graphics"', "no row for"),
        ("[refused]\n", '[refused]\ncuAbsent = "external"\n', "cuAbsent.*no driver has"),
        ("[refused]\n", '[refused]\ncuInit = "external"\n', "not sorted|more than once"),
        ('cuGLInit = "graphics"', 'cuGLInit = "whim"', "whim"),
        ('cuLaunchKernel_ptsz = "cuLaunchKernel"', 'cuLaunchKernel_ptsz = "cuInit"', "no twin"),
        ('[cuStreamQuery]\nclass = "completion"\nstream = "hStream"', "[cuStreamQuery]\n"
         'class = "completion"', "needs its `stream`"),
        ("[cuInit]\n", "[cuInit]\nopcode = 32\n", "opcode 32"),
        ('deferred = ["CUDA_ERROR_OUT_OF_MEMORY"]', 'deferred = ["ENOMEM"]', "cuda.h has no"),
        ('deferred = ["CUDA_ERROR_OUT_OF_MEMORY"]\n', "", "lists its deferred errors"),
    ],
)  # fmt: skip
def test_generator_refuses(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(GeneratorError, match=message):
        load_changed(tmp_path, old, new)


def test_compatibility_page_is_what_the_generator_writes() -> None:
    _, texts = generator.texts(ROOT, headers())
    assert PAGE.read_text() == texts["docs/compatibility.md"], "run make gen"


def test_compatibility_page_names_every_entry_point(model: Model) -> None:
    text = PAGE.read_text()
    named = set(
        re.findall(r"^\| `(cu\w+)` \| (?:served|served with limits|refused) \|", text, re.M)
    )
    assert named == EXPORTED - set(model.api.twins)
    for why in model.api.refused.values():
        assert why in text


def test_what_the_library_refuses_in_part_is_said_in_the_row(model: Model) -> None:
    """refuse_part("cuName ...") in the library: the row of cuName has `limits`."""
    sources = ROOT.glob("guest/libcuda/by_hand/*.cpp")
    parts = {
        name
        for path in sources
        for name in re.findall(r'refuse_part\(\s*"[^"]*?\b(cu[A-Z]\w+)', path.read_text())
    }
    assert len(parts) > 5
    limited = {row.name for row in model.rows if row.limits is not None}
    assert {name for name in parts if not any(n.startswith(name) for n in limited)} == set()
