# SPDX-License-Identifier: Apache-2.0
"""One kvgpud for all tests of the folder that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from framework.loopback import Loopback, loopback


@pytest.fixture(scope="session")
def host() -> Iterator[Loopback]:
    with loopback() as running:
        yield running
        # No record may answer late what `deferred` of protocol/api.toml does not list.
        assert "BUG:" not in running.logs(), running.logs()
