#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh: makes kvgpu-host, kvgpu-guest and kvgpu-controller_*.deb in dist/ from build/release, or
# KVGPU_BUILD_DIR; lintian must be content. Does nothing if what goes into them has not changed.
set -euo pipefail

cd "$(dirname "$0")/../.."
root=$PWD
build=${KVGPU_BUILD_DIR:-$root/build/release}
uv=$root/.tools/bin/uv
binaries=("$build"/guest/libcuda/libcuda.so.1 "$build"/guest/libcuda/libnvidia-ml.so.1
  "$build"/guest/agent/kvgpu-agentd "$build"/guest/check/kvgpu-check "$build"/guest/smi/kvgpu-smi
  "$build"/host/worker/kvgpu-worker "$build"/host/software_gpu/libcuda.so.1)
sources=(host protocol xml_templates packaging pyproject.toml README.md LICENSE)

for file in "${binaries[@]}"; do
  [[ -f $file ]] || { echo "deb: $file is missing: run \`make build\`" >&2; exit 1; }
done

key=$({
  sha256sum "${binaries[@]}"
  find "${sources[@]}" -type f -not -name '*.pyc' -not -name '*.cpp' -not -name '*.h' -print0 |
    sort -z | xargs -0 sha256sum
} | sha256sum | cut -c1-64)
if [[ -f dist/inputs.sha256 && $(<dist/inputs.sha256) == "$key" ]]; then
  echo "deb: dist/ is up to date"
  exit 0
fi

copy=$root/build/deb/source
rm -rf build/deb
mkdir -p "$copy"
cp -a "${sources[@]}" "$copy"
cp -a packaging/deb/debian "$copy/debian"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' packaging/python/kvgpu/__init__.py)
cat >"$copy/debian/changelog" <<EOF
kvgpu ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- The kvgpu authors <kvgpu@localhost.localdomain>  $(date -R --date="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")
EOF

build_packages() {
  KVGPU_NO_NATIVE=1 "$uv" build --quiet --wheel --no-build-isolation --python .venv/bin/python \
    --out-dir build/deb/wheel
  local wheel=("$root"/build/deb/wheel/kvgpu-*.whl)
  cd "$copy"
  # -d: debhelper is all it needs from here on, the native parts are built.
  KVGPU_BUILD=$build KVGPU_UV=$uv KVGPU_WHEEL=${wheel[0]} \
    dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
  echo "lintian:"
  lintian --allow-root --fail-on error,warning --info ../*.deb
}

log=$root/build/deb/log
echo "deb: building (log build/deb/log)"
trap 'tail -n 30 "$log" >&2; echo "deb: failed, log $log" >&2' ERR
# A subshell: it changes its folder. Not `… ||`: that would switch `set -e` off in it.
(build_packages) >"$log" 2>&1
trap - ERR
rm -rf dist
mkdir dist
mv build/deb/*.deb dist/
echo "$key" >dist/inputs.sha256
ls -1 dist/*.deb
