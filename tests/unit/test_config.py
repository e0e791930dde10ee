# SPDX-License-Identifier: Apache-2.0
"""/etc/kvgpu/host.toml: what it may say, and what kvgpud says of what it may not."""

from __future__ import annotations

import grp
import os
import re
from pathlib import Path

import pytest

from kvgpu.host import paths
from kvgpu.host.config import HostConfig, load_config, make_jails
from kvgpu.host.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_file_is_optional(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    assert load_config(path) == HostConfig()
    path.write_text('driver = "software"\ngrace_s = 0.5\n')
    assert load_config(path) == HostConfig(driver="software", grace_s=0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("driver = 'auto'\n\nkeep_session_s = 5\n", "line 3: there is no key 'keep_session_s', "),
        ("keep_session_s = 5\n", "nearest one is 'keep_sessions_s'"),
        ("[worker]\nuser = 'x'\n", "line 1: there is no key 'worker', the nearest one is 'worker_"),
        ("worker.user = 'x'\n", "line 1: there is no key 'worker', the nearest one is 'worker_"),
        ("jail = true\ngrace_s = -1\n", "line 2: grace_s: input should be greater than or equal"),
        ("# grace_s\ngrace_s = 'x'\n", "line 2: grace_s: input should be a valid number"),
        ("grace_s = -1\nnothing = 1\n", "line 1: grace_s: "),
        ("grace_s = -1\nnothing = 1\n", "; line 2: there is no key 'nothing'"),
        (
            "jail = true\nworker_group = 'kvgpu-wroker'\n",
            "line 2: worker_group: there is no group 'kvgpu-wroker': addgroup --system "
            "kvgpu-wroker, or write 'kvgpu-worker'",
        ),
        (
            "qemu_user = 'libvirt-qmeu'\n",
            "line 1: qemu_user: there is no user 'libvirt-qmeu': as `user` in "
            "/etc/libvirt/qemu.conf, or write 'libvirt-qemu'",
        ),
        ("worker_group = 'qzx'\n", "line 1: worker_group: there is no group 'qzx': addgroup"),
        ("driver = \n", "line 1, column"),
        ("driver = 'a'\ndriver = 'b'\n", "line 2, column"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message
    assert caught.value.hint


def test_group_of_the_package_may_be_missing_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nogroup = grp.getgrnam("nogroup")

    def installed_nothing(name: str) -> grp.struct_group:
        if name != "nogroup":
            raise KeyError(name)
        return nogroup

    monkeypatch.setattr(grp, "getgrnam", installed_nothing)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(paths, "RUNTIME_DIR", tmp_path)
    jails = make_jails(HostConfig(worker_cgroup=None))
    assert jails
    assert jails.gid == nogroup.gr_gid
    with pytest.raises(ConfigError, match=r"no group 'other'.*addgroup --system other"):
        make_jails(HostConfig(worker_cgroup=None).model_copy(update={"worker_group": "other"}))


def test_file_that_is_no_text_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_bytes(b"driver = '\xff'")
    with pytest.raises(ConfigError, match=r"host\.toml"):
        load_config(path)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_packaged_file_shows_each_key_with_its_default(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "deb" / "host.toml").read_text()
    path = tmp_path / "host.toml"
    path.write_text(text)
    assert load_config(path) == HostConfig()  # all is commented out
    path.write_text(re.sub(r"(?m)^#(?! )", "", text))
    shown = load_config(path)
    assert shown.model_fields_set == set(HostConfig.model_fields)
    assert shown.log_dir == Path("/var/log/kvgpu")  # None cannot be written
    assert shown.model_copy(update={"log_dir": None}) == HostConfig()
