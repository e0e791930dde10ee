# SPDX-License-Identifier: Apache-2.0
"""A kick of an eventfd that cannot be made to wait.

O_NONBLOCK belongs to an open file, not to a descriptor: whoever else has the eventfd can fill its
counter and take the flag away between any two steps of ours, so that a write would stop kvgpud. The
kernel itself never waits where an eventfd announces the end of an asynchronous read (io_submit(2),
IOCB_FLAG_RESFD). So one byte of /dev/zero is read, with the eventfd to announce it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import NamedTuple

from kvgpu.host.errors import ConfigError

_SYS_IO_SETUP = 206  # x86-64
_SYS_IO_GETEVENTS = 208
_SYS_IO_SUBMIT = 209
_IOCB_CMD_PREAD = 0
_IOCB_FLAG_RESFD = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Iocb(ctypes.Structure):
    """linux/aio_abi.h: struct iocb, little-endian."""

    _fields_ = (
        ("aio_data", ctypes.c_uint64),
        ("aio_key", ctypes.c_uint32),
        ("aio_rw_flags", ctypes.c_int32),
        ("aio_lio_opcode", ctypes.c_uint16),
        ("aio_reqprio", ctypes.c_int16),
        ("aio_fildes", ctypes.c_uint32),
        ("aio_buf", ctypes.c_uint64),
        ("aio_nbytes", ctypes.c_uint64),
        ("aio_offset", ctypes.c_int64),
        ("aio_reserved2", ctypes.c_uint64),
        ("aio_flags", ctypes.c_uint32),
        ("aio_resfd", ctypes.c_uint32),
    )


class _Reader(NamedTuple):
    context: ctypes.c_ulong
    zeroes: int  # /dev/zero
    byte: ctypes.Array[ctypes.c_char]
    ended: ctypes.Array[ctypes.c_char]  # a struct io_event, of which nothing is of interest


def prepare() -> None:
    """Do what the first kick would. Raises ConfigError where the kernel does not allow it."""
    try:
        _reader()
    except OSError as error:
        raise ConfigError(
            f"kvgpud cannot kick workers: {error}",
            hint="raise fs.aio-max-nr by sysctl, or let the container call io_setup",
        ) from error


def kick(fd: int) -> None:
    """Add 1 to the counter of eventfd `fd`, if there is room. Raises OSError; never waits."""
    reader = _reader()
    request = _Iocb(
        aio_lio_opcode=_IOCB_CMD_PREAD,
        aio_fildes=reader.zeroes,
        aio_buf=ctypes.addressof(reader.byte),
        aio_nbytes=1,
        aio_flags=_IOCB_FLAG_RESFD,
        aio_resfd=fd,
    )
    _syscall(_SYS_IO_SUBMIT, reader.context, 1, ctypes.byref(ctypes.pointer(request)))
    _syscall(_SYS_IO_GETEVENTS, reader.context, 1, 1, reader.ended, None)


@cache
def _reader() -> _Reader:
    context = ctypes.c_ulong(0)
    _syscall(_SYS_IO_SETUP, 1, ctypes.byref(context))
    zeroes = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
    return _Reader(context, zeroes, ctypes.create_string_buffer(1), ctypes.create_string_buffer(32))


def _syscall(number: int, *arguments: object) -> None:
    if _libc.syscall(number, *arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"system call {number}: {os.strerror(error)}")
