# SPDX-License-Identifier: Apache-2.0
"""The one exception tree of the Python side: what went wrong, and what to do about it."""

from __future__ import annotations


class KvgpuError(Exception):
    """An error a user can read: `message` says what and which, `hint` what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ProtocolError(KvgpuError):
    """A peer broke a rule of PROTOCOL.md; it loses its connection or session, nobody else does."""


class RegionError(KvgpuError):
    """A shared region cannot be made, adopted or divided."""


class SessionError(KvgpuError):
    """A session cannot be opened; `cuda_error` is what its client gets to see."""

    def __init__(self, cuda_error: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cuda_error = cuda_error


class DomainError(KvgpuError):
    """A domain XML cannot be read or made."""


class ConfigError(KvgpuError):
    """The configuration or the installation is not usable."""


class DaemonError(KvgpuError):
    """kvgpud cannot be reached, or refused a request."""
