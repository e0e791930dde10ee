#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# repo.sh [DIR PACKAGE...]: a signed apt repository of the packages in dist/ (dist/repo) or of those
# named, with its public key and a source to copy into /etc/apt/sources.list.d. Made anew if a
# package has changed. KVGPU_GNUPGHOME has the key that signs; the default is one made for the
# purpose, in build/gnupg.
set -euo pipefail
umask 022

cd "$(dirname "$0")/.."
repo=$(realpath --canonicalize-missing "${1:-dist/repo}")
packages=("${@:2}")
[[ ${#packages[@]} -gt 0 ]] || packages=(dist/*.deb)
# Where users have it: apt reads it as _apt, who may not look into the home that this may be in.
served=/srv/kvgpu-repo
export GNUPGHOME=${KVGPU_GNUPGHOME:-$PWD/build/gnupg}

if [[ -f $repo/kvgpu.sources ]] &&
  [[ -z $(find "${packages[@]}" packaging/repo.sh -newer "$repo/kvgpu.sources") ]]; then
  echo "repo: $repo is up to date"
  exit 0
fi

if [[ -e $repo && ! -f $repo/kvgpu.sources && -n $(ls -A "$repo") ]]; then
  echo "repo: $repo has something else in it, and would be replaced: name another folder" >&2
  exit 1
fi

mkdir -p "$GNUPGHOME"
chmod 700 "$GNUPGHOME"
work=$(mktemp --directory)
trap 'gpgconf --kill all; rm -r "$work"' EXIT
gpg() { command gpg --batch --quiet --no-auto-check-trustdb "$@"; }
secret_key() { gpg --list-secret-keys --with-colons | awk -F: '$1 == "sec" { print $5; exit }'; }
[[ -n $(secret_key) ]] ||
  gpg --passphrase '' --quick-generate-key 'kvgpu local repository' ed25519 sign never
key=$(secret_key)

mkdir "$work/conf"
cat >"$work/conf/distributions" <<EOF
Origin: kvgpu
Label: kvgpu
Codename: stable
Architectures: amd64
Components: main
Description: CUDA for KVM virtual machines
SignWith: $key
EOF
reprepro --silent --silent --basedir "$work" --outdir "$work/repo" includedeb stable "${packages[@]}"
gpg --armor --export "$key" >"$work/repo/kvgpu.asc"
cat >"$work/repo/kvgpu.sources" <<EOF
Types: deb
URIs: file:$served
Suites: stable
Components: main
Signed-By: /etc/apt/keyrings/kvgpu.asc
EOF
rm -rf "$repo"
mkdir -p "${repo%/*}"
mv "$work/repo" "$repo"
echo "repo: $repo; to install from it:"
echo "  sudo cp -rT $repo $served"
echo "  sudo install -D -m 644 $served/kvgpu.asc /etc/apt/keyrings/kvgpu.asc"
echo "  sudo cp $served/kvgpu.sources /etc/apt/sources.list.d/ && sudo apt update"
echo "where kvgpu.sources says:"
sed 's/^/  /' "$repo/kvgpu.sources"
