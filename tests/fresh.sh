#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fresh.sh [TARGET...]: runs make TARGETs (default: demo test) in a new Debian 12 root that holds a
# clone of HEAD and nothing else. Needs root and mmdebstrap (packaging/apt-packages.txt).
# KEEP=1 leaves the root behind; FRESH_ROOT says where it is made (default: build/fresh).
set -euo pipefail

cd "$(dirname "$0")/.."
source_dir=$PWD
root=${FRESH_ROOT:-$source_dir/build/fresh}
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=(demo test)

[[ $(id -u) -eq 0 ]] || {
  echo "fresh: needs root (mmdebstrap, mount, chroot)" >&2
  exit 1
}
command -v mmdebstrap >/dev/null || {
  echo "fresh: mmdebstrap is missing; run make setup" >&2
  exit 1
}
[[ ! -e $root ]] || {
  echo "fresh: $root is left from an earlier run; unmount what is below it and remove it" >&2
  exit 1
}

# /dev is the machine's own, but the chroot's group ids are not: what a run does to /dev/kvm so that
# its QEMU may open it is undone here.
kvm_before=$([[ ! -e /dev/kvm ]] || stat --format='%u:%g %a' /dev/kvm)

end_processes() {
  # Only those whose root is the new one: its libvirtd, virtlogd, QEMU.
  local link
  for link in /proc/[0-9]*/root; do
    [[ $(readlink "$link" 2>/dev/null) == "$root" ]] || continue
    kill -9 "$(basename "$(dirname "$link")")" 2>/dev/null || true
  done
}

clean_up() {
  local status=$?
  trap - EXIT
  end_processes
  sleep 1
  if [[ -n $kvm_before ]]; then
    chown "${kvm_before% *}" /dev/kvm
    chmod "${kvm_before#* }" /dev/kvm
  fi
  mountpoint --quiet "$root" && umount --recursive --lazy "$root"
  # A folder that is still a mount point must not be descended into: it may be the machine's /dev.
  if [[ -z ${KEEP:-} && -d $root ]] && ! grep -q " $root" /proc/mounts; then
    rm -rf --one-file-system "$root"
  fi
  exit $status
}
trap clean_up EXIT INT TERM

step() {
  local begun=$SECONDS
  echo "fresh: $*"
  "$@"
  echo "fresh: $* took $((SECONDS - begun)) s"
}

copy_configuration() {
  # Which mirror, which index, which certificates: the machine's own.
  rm -f "$root/etc/apt/sources.list" # mmdebstrap wrote one
  local path
  for path in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/apt/keyrings \
    /etc/apt/auth.conf.d /etc/apt/preferences.d /etc/pip.conf /etc/resolv.conf /etc/hosts \
    /etc/uv /etc/ssl/certs /usr/local/share/ca-certificates /root/.config/pip /root/.config/uv; do
    [[ -e $path ]] || continue
    mkdir -p "$root$(dirname "$path")"
    rm -rf "${root:?}$path"
    cp -aL "$path" "$root$path"
  done
}

enter() {
  local pass=(HOME=/root TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE \
    PIP_CERT PIP_INDEX_URL UV_INDEX_URL UV_DEFAULT_INDEX KVGPU_VM_ACCEL; do
    [[ -z ${!name:-} ]] || pass+=("$name=${!name}")
  done
  # Not chroot alone: libvirt enters the mount namespaces of its domains, and that leads out of a
  # chroot. What is left running at the end dies with the process namespace.
  # shellcheck disable=SC2016
  unshare --mount --propagation private --pid --fork --kill-child bash -euc '
    cd "$0"
    mount -t proc proc proc
    mkdir -p .old
    pivot_root . .old
    umount --lazy /.old
    exec chroot . "$@"' "$root" /usr/bin/env -i "${pass[@]}" bash -euo pipefail -c "$1"
}

make_root() {
  mkdir -p "$(dirname "$root")"
  mmdebstrap --variant=minbase --mode=root --format=directory --quiet \
    --include=ca-certificates,make,git,python3,python3-venv bookworm "$root"
  copy_configuration
  # Without a mount of its own libvirt cannot make / private for its domains.
  mount --bind "$root" "$root"
  mount --make-private "$root"
  local dir
  for dir in dev proc sys; do
    mount --rbind "/$dir" "$root/$dir"
    mount --make-rslave "$root/$dir"
  done
  git clone --quiet --no-hardlinks "file://$source_dir" "$root/root/kvgpu"
}

step make_root
for target in "${targets[@]}"; do
  step enter "cd /root/kvgpu && make $target"
done
echo "fresh: passed"
