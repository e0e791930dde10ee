# SPDX-License-Identifier: Apache-2.0
"""One kvgpud for all tests of the folder that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from framework.loopback import ROOT, Loopback, loopback

from kvgpu.protocol.generator.model import Model
from kvgpu.protocol.generator.parse import load


@pytest.fixture(scope="session")
def host() -> Iterator[Loopback]:
    with loopback() as running:
        yield running
        # No record may answer late what `deferred` of protocol/api.toml does not list.
        assert "BUG:" not in running.logs(), running.logs()


@pytest.fixture(scope="session")
def model() -> Model:
    """What protocol/api.toml and the headers say."""
    (headers,) = ROOT.glob(".venv/lib/python3.*/site-packages/nvidia/cu13/include")
    return load(ROOT, headers)
