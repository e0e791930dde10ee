#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# documents.sh host PYTHON VERSION DIR, documents.sh guest BUILD VERSION DIR: manual pages and
# completions below DIR, from the programs themselves.
set -euo pipefail

kind=$1 source=$2 version=$3 root=$4
man=$root/usr/share/man share=$root/usr/share
export PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8

from_help() { # PROGRAM SECTION SUMMARY COMMAND...
  local program=$1 section=$2 summary=$3
  shift 3
  mkdir -p "$man/man$section"
  # help2man takes the page's name from the program's, and knows "Usage:" and a blank line below it.
  printf '#!/bin/sh\nCOLUMNS=1000 %s "$@" | sed "1s/^usage: .*/U&\\n/; 1s/^Uu/U/"\n' "$*" \
    >"$scratch/$program"
  chmod +x "$scratch/$program"
  help2man --no-info --section "$section" --name "$summary" --version-string "$version" \
    --output "$man/man$section/$program.$section" "$scratch/$program"
}

kvgpu() { # of the environment that is packaged
  "$source" -c 'import sys; sys.argv[0] = "kvgpu"; from kvgpu.host.cli import main; main()' "$@"
}

main_page() {
  mkdir -p "$man/man1"
  {
    printf '# NAME\n\nkvgpu - CUDA for KVM virtual machines\n\n# SYNOPSIS\n'
    # The head of what typer writes says the name and summary, as above.
    "$source" -m typer kvgpu.host.cli utils docs --name kvgpu | sed '1,/^\*\*Usage/d'
    printf '\n# SEE ALSO\n\nkvgpud(8), kvgpu-check(1), virsh(1)\n'
  } | sed -E 's/^##+ `(.*)`$/# \1/' |
    lowdown -s -Tman --parse-no-intraemph -m title=kvgpu -m section=1 -m "source=kvgpu $version" \
      -m volume="User Commands" >"$man/man1/kvgpu.1"
}

completions() {
  mkdir -p "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
    "$share/fish/vendor_completions.d"
  _KVGPU_COMPLETE=source_bash kvgpu >"$share/bash-completion/completions/kvgpu"
  # zsh loads the file as the function, when it is first needed: it must complete at once.
  _KVGPU_COMPLETE=source_zsh kvgpu | sed '/./,$!d; s/^compdef .*/_kvgpu_completion "$@"/' \
    >"$share/zsh/vendor-completions/_kvgpu"
  _KVGPU_COMPLETE=source_fish kvgpu >"$share/fish/vendor_completions.d/kvgpu.fish"
}

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
case $kind in
  host)
    main_page
    completions
    from_help kvgpud 8 "serves this host's GPUs to its virtual machines" \
      "$source" -m kvgpu.host.kvgpud
    ;;
  guest)
    from_help kvgpu-check 1 "looks whether CUDA works in this virtual machine, and why not" \
      "$source/guest/check/kvgpu-check"
    from_help kvgpu-smi 1 "shows the GPUs of this virtual machine and who uses them" \
      "$source/guest/smi/kvgpu-smi"
    from_help kvgpu-agentd 8 "connects the CUDA processes of this machine with its host" \
      "$source/guest/agent/kvgpu-agentd"
    ;;
esac
