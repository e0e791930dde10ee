# SPDX-License-Identifier: Apache-2.0
"""The completion files that kvgpu-host installs, in the shells that they are for."""

from __future__ import annotations

import pytest
import typer
from framework.chroot import Chroot

from kvgpu.host.cli import app

pytestmark = pytest.mark.timeout(900)  # the first one makes the roots

# What follows `kvgpu vm` is completed, as a user would see it.
BASH = r"""bash -c '
source /usr/share/bash-completion/bash_completion
_completion_loader kvgpu
COMP_WORDS=(kvgpu vm "") COMP_CWORD=2 COMP_LINE="kvgpu vm " COMP_POINT=9
$(complete -p kvgpu | sed "s/.* -F \([^ ]*\).*/\1/") kvgpu
printf "%s\n" "${COMPREPLY[@]}"'"""
FISH = "fish --command 'complete --do-complete \"kvgpu vm \"'"
# Only in a terminal of its own; the answer may come in pieces.
ZSH = r"""mkdir -p /dev/pts && mount -t devpts devpts /dev/pts
cat >/tmp/complete.zsh <<'EOF'
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; stty rows 50 columns 200; autoload -Uz compinit; compinit -u"
sleep 2
zpty -w -n shell "kvgpu vm "$'\t\t'
tries=60
until [[ $offered == *xml* ]] || (( tries-- == 0 )); do
  sleep 1
  while zpty -r -t shell line; do offered+=$line; done
done
print -r -- $offered
EOF
TERM=dumb zsh -f /tmp/complete.zsh"""


def verbs() -> list[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    vm = group.commands["vm"]
    assert isinstance(vm, typer.core.TyperGroup)
    assert {"list", "xml", "attach", "detach"} <= set(vm.commands)
    return sorted(vm.commands)


@pytest.mark.parametrize("command", [BASH, FISH, ZSH], ids=["bash", "fish", "zsh"])
def test_completion_of_vm_gives_its_verbs(host: Chroot, command: str) -> None:
    offered = host.check(command)
    words = offered.replace("\t", " ").split()
    assert [verb for verb in verbs() if verb not in words] == [], offered
