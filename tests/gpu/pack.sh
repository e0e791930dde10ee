#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pack.sh: what tests/gpu/run.sh needs of build/release, without symbols, as build/gpu-build.tar.xz
# (5 MiB): to carry to a GPU machine without compilers, where run.sh unpacks it.
set -euo pipefail

cd "$(dirname "$0")/../.."
parts=(build/release/{guest,host,benchmarks} build/release/tests/{programs,loopback})
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

find "${parts[@]}" -name CMakeFiles -prune -o \
  '(' -type l -o -type f '(' -perm -u+x -o -name '*.so*' -o -name '*.ptx' -o -name '*.cubin' -o -name '*.fatbin' ')' ')' -print0 |
  tar --null --files-from=- -c | tar -C "$work" -x
find "$work" -type f -exec sh -c 'head -c 4 "$1" | grep -q ELF && strip --strip-unneeded "$1"' sh {} ';'
tar -C "$work" -c build | xz -T0 -9 >build/gpu-build.tar.xz
echo "pack: build/gpu-build.tar.xz, $(du -h build/gpu-build.tar.xz | cut -f1)"
