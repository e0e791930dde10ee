# SPDX-License-Identifier: Apache-2.0
"""What dpkg runs for kvgpu-host, with an administrator's files instead of this machine's; the apt
repository."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PACKAGING = Path(__file__).parents[2] / "packaging"
RULE = "/dev/shm/kvgpu-* rw,"
OURS = f"# kvgpu-host\n{RULE}\n"
MINE = "/srv/images/** rk,\n"


def run_script(name: str, root: Path, *arguments: str) -> str:
    """Run a maintainer script whose files are in `root`; return what it says."""
    script = (PACKAGING / "deb" / "debian" / f"kvgpu-host.{name}").read_text()
    script = re.sub(r"(?<=[ =])/(?=(etc|run|var)/)", f"{root}/", script)
    assert f"{root}/etc" in script
    done = subprocess.run(
        ["/bin/sh", "-c", script, name, *arguments],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def rules(root: Path) -> Path:
    return root / "etc/apparmor.d/local/abstractions/libvirt-qemu"


def write_rules(root: Path, text: str) -> None:
    rules(root).parent.mkdir(parents=True)
    rules(root).write_text(text)


@pytest.mark.parametrize("before", ["", MINE, MINE.removesuffix("\n")])
def test_rule_comes_with_the_package_and_goes_with_it(before: str, tmp_path: Path) -> None:
    write_rules(tmp_path, before)
    abstraction = tmp_path / "etc/apparmor.d/abstractions/libvirt-qemu"
    abstraction.parent.mkdir()
    abstraction.touch()  # libvirt is there, and includes the file
    mine = MINE if before else ""
    for _ in range(2):
        run_script("postinst", tmp_path, "configure", "0.1")
        assert rules(tmp_path).read_text() == mine + OURS
    run_script("postrm", tmp_path, "remove")
    assert rules(tmp_path).read_text() == mine


def test_rules_that_only_the_package_had_are_no_longer_there(tmp_path: Path) -> None:
    run_script("postinst", tmp_path, "configure", "0.1")
    assert rules(tmp_path).read_text() == OURS
    run_script("postrm", tmp_path, "remove")
    assert not rules(tmp_path).exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"# kvgpu-host\n/dev/shm/kvgpu-a* rw,\n{MINE}", f"/dev/shm/kvgpu-a* rw,\n{MINE}"),
        (f"# kvgpu-host\n# {RULE}\n{MINE}", f"# {RULE}\n{MINE}"),
        (f"{MINE}# kvgpu-host\n", MINE),
        (f"{RULE}\n{MINE}", f"{RULE}\n{MINE}"),
        (f"# kvgpu-host\n{MINE}{RULE}\n{MINE}", f"{MINE}{RULE}\n{MINE}"),
    ],
    ids=["changed", "switched off", "taken out", "of the administrator", "moved"],
)
def test_what_the_administrator_made_of_the_rule_stays(
    before: str, after: str, tmp_path: Path
) -> None:
    write_rules(tmp_path, before)
    run_script("postinst", tmp_path, "configure", "0.1")
    assert rules(tmp_path).read_text() == before
    run_script("postrm", tmp_path, "remove")
    assert rules(tmp_path).read_text() == after


DOMAIN = """<domain type='kvm'>
  <name>x</name>
  <metadata>
    <kvgpu:vm xmlns:kvgpu="https://kvgpu.org/xmlns/vm/1"/>
  </metadata>
</domain>
"""


def test_removal_names_the_domains_that_will_not_start(tmp_path: Path) -> None:
    folder = tmp_path / "etc/libvirt/qemu"
    assert run_script("prerm", tmp_path, "remove") == ""  # no libvirt
    folder.mkdir(parents=True)
    (folder / "other.xml").write_text("<domain type='kvm'><name>other</name></domain>")
    assert run_script("prerm", tmp_path, "remove") == ""
    (folder / "alice.xml").write_text(DOMAIN)
    (folder / "two words.xml").write_text("<channel><target name='org.kvgpu.0'/></channel>")
    said = run_script("prerm", tmp_path, "remove").splitlines()
    assert said[1:3] == ["kvgpu-host:   alice", "kvgpu-host:   two words"]
    assert run_script("prerm", tmp_path, "upgrade", "0.2") == ""


def make_repo(folder: Path, package: Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PACKAGING / "repo.sh", folder, package],
        env=os.environ | {"KVGPU_GNUPGHOME": str(home)},
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The smallest one that dpkg-deb makes."""
    control = tmp_path / "package" / "DEBIAN" / "control"
    control.parent.mkdir(parents=True, mode=0o755)
    control.write_text(
        "Package: kvgpu-none\nVersion: 1\nArchitecture: amd64\nMaintainer: none\n"
        "Section: admin\nPriority: optional\nDescription: none\n"
    )
    deb = tmp_path / "kvgpu-none_1_amd64.deb"
    command = ["dpkg-deb", "--root-owner-group", "--build", str(tmp_path / "package"), str(deb)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=20)
    return deb


def test_repository_can_be_read_by_apts_user_where_the_printed_lines_put_it(
    tmp_path: Path, package: Path
) -> None:
    repo = tmp_path / "new" / "repo"
    made = make_repo(repo, package, tmp_path / "gnupg")
    assert made.returncode == 0, made.stderr
    for path in (repo, *repo.rglob("*")):
        wanted = 0o755 if path.is_dir() else 0o644
        assert path.stat().st_mode & 0o777 == wanted, path
    assert list(repo.glob("pool/main/k/*/*.deb"))
    (uri,) = re.findall("^URIs: file:(.*)$", (repo / "kvgpu.sources").read_text(), re.MULTILINE)
    assert f"sudo cp -rT {repo} {uri}\n" in made.stdout
    assert uri.startswith("/srv/")
    assert "up to date" in make_repo(repo, package, tmp_path / "gnupg").stdout
    os.utime(package)
    assert make_repo(repo, package, tmp_path / "gnupg").returncode == 0  # made anew


def test_repository_replaces_nothing_else(tmp_path: Path, package: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "one.jpg").touch()
    refused = make_repo(folder, package, tmp_path / "gnupg")
    assert refused.returncode == 1
    assert f"{folder} has something else in it" in refused.stderr
    assert [path.name for path in folder.iterdir()] == ["one.jpg"]
    assert make_repo(folder / "one.jpg", package, tmp_path / "gnupg").returncode == 1
    assert (folder / "one.jpg").exists()
