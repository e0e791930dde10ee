# SPDX-License-Identifier: Apache-2.0
"""Roots with and without our packages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from framework.chroot import Chroot, chroot


@pytest.fixture
def root() -> Iterator[Chroot]:
    """A minimal Debian of its own."""
    with chroot() as made:
        yield made


@pytest.fixture
def ready() -> Iterator[Chroot]:
    """One of its own that has what our packages need."""
    with chroot(ready=True) as made:
        yield made


@pytest.fixture(scope="session")
def host() -> Iterator[Chroot]:
    """One with kvgpu-host, for tests that change nothing."""
    with chroot(ready=True) as made:
        made.install("kvgpu-host")
        yield made
