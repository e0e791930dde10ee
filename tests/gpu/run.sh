#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [PART...|K/N]: what needs a real GPU, in parts of at most 8 minutes. Without PART: all of them
# but libraries and workloads (whose libraries a machine may lack). K/N: the Kth of N calls that
# together do everything, libraries and workloads, too; `make test-gpu-report` merges their logs.
# SHARE=K/N: of cases, errors, stateful and workloads only every Nth.
# run.sh --at-once "PART:K/N PART" "NAME=VALUE PART"…: such lists beside each other, for $LIMIT_S seconds
# (570) at most; their logs in $out/logs.tgz, a folder each. Each process takes half a gigabyte of its GPU,
# and `faults` for a while all there is: CUDA_VISIBLE_DEVICES=1 gives a list another one.
#   programs  each CUDA program natively, then through kvgpu: same lines, same exit status
#   record    what each CUDA program prints natively, into a file or compared with the recorded one
#   oracles   each form of ptx_ops.toml on the GPU: what the software GPU is held to is true of it
#   life      kvgpud and workers killed under programs that compute, forks, exits, waits
#   faults    kernels and calls that do wrong, natively and through kvgpu beside a session that computes
#   stateful  $PROGRAMS random programs of driver API calls (5,000), natively and through kvgpu: the same
#   host      a live worker's confinement, the inventory, start to first result with pre-started workers
#   nvml      nvidia-smi's forms natively and through kvgpu: what it shows is the slice, as CUDA shows it
#   cases     the driver API cases of tests/loopback, natively and through kvgpu (ONLY="blocking*")
#   errors    good and bad calls of every entry point, natively (or recorded: NATIVE=again) and through kvgpu: the same CUresults
#   runtimes  CUDA runtimes of other versions and cuda-python: each natively, then through kvgpu
#   starts    many process starts, each pointer of each kind of memory looked up in /proc/self/maps
#   libraries programs on cuBLAS, cuDNN, cuFFT, cuRAND, cuSOLVER, cuSPARSE, Thrust: the same (needs nvcc)
#   workloads PyTorch, JAX, CuPy…: natively, through kvgpu, natively (ONLY="NAME…")
#   bench     benchmarks/: every row natively and remoted in turn; BENCH="OPTION…" in the place of --quick
#   vm        programs, PyTorch, NCCL, cuda-python, O_DIRECT in an emulated VM beside the GPU: as natively
# Needs the NVIDIA driver, build/release (built here, or carried along as build/gpu-build.tar.xz) and Python 3.11 or newer with
# the run-time packages: from .venv, else from wheels in .whl/. No network. Logs: ${OUT:-build/test-gpu}.
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${OUT:-$PWD/build/test-gpu}
programs_dir=build/release/tests/programs
part_limit_s=480
program_limit_s=120
export PYTHONSAFEPATH=1

die() {
  echo "test-gpu: $*" >&2
  exit 1
}

unpack_build() {
  [[ -e build/release/host/worker/kvgpu-worker || ! -e build/gpu-build.tar.xz ]] || tar -xJf build/gpu-build.tar.xz
}

find_python() {
  if .venv/bin/python -c 'import posix_ipc, pydantic, typer' 2>/dev/null; then
    python=.venv/bin/python
  else
    python=python3
    if [[ -d .whl && -z ${SITE:-} ]]; then
      # Outside $out: that folder holds logs only.
      SITE=$(mktemp -d)
      export SITE
      python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$SITE" .whl/*.whl
    fi
  fi
  export PYTHONPATH=$PWD/packaging/python${SITE:+:$SITE}
  "$python" -c 'import kvgpu.host.cli' ||
    die "kvgpu does not import: run make setup, or put the wheels of requirements.lock into .whl/"
}

# Lines that begin with # carry timings and addresses; all others must not differ.
stable_lines() { grep -v '^#' "$1" || true; }

run_one() { # LOG COMMAND...: stdout to LOG.out, the rest to LOG.err, the status to LOG.status
  local log=$1 status=0
  shift
  timeout "$program_limit_s" "$@" >"$log.out" 2>"$log.err" || status=$?
  echo "$status" >"$log.status"
}

compare() { # PROGRAM LOG COMMAND...: natively, then remoted
  local program=$1 log=$2
  shift 2
  run_one "$log.native" "$@"
  run_one "$log.remoted" "$python" -m kvgpu.host.cli run -- "$@"
  if ! cmp -s "$log.native.status" "$log.remoted.status"; then
    echo "FAILED  $program: exit status $(<"$log.native.status") natively," \
      "$(<"$log.remoted.status") remoted"
    tail -n 20 "$log.remoted.err"
    return 1
  fi
  if ! diff <(stable_lines "$log.native.out") <(stable_lines "$log.remoted.out"); then
    echo "FAILED  $program: native (<) and remoted (>) differ"
    return 1
  fi
  if [[ $(<"$log.native.status") -ne 0 || ! -s $log.native.out ]]; then
    echo "FAILED  $program: exit status $(<"$log.native.status") natively and remoted"
    tail -n 20 "$log.native.out" "$log.native.err"
    return 1
  fi
  echo "same    $program ($(stable_lines "$log.native.out" | wc -l) lines)" \
    "sha256 $(sha256sum "$1" | cut -d' ' -f1)"
}

# spin and steady have parts of their own, bugs and speed are for the software GPU; CMake's files are no
# programs.
program_names() {
  find "$programs_dir" -maxdepth 1 -type f -executable -printf '%f\n' |
    grep -vxE 'bugs|speed|spin|steady' | sort | grep . ||
    die "no programs in $programs_dir: run make build"
}

part_programs() {
  local failed=0 name names
  mkdir -p "$out/programs"
  names=$(program_names)
  for name in $names; do
    compare "$name" "$out/programs/$name" "$programs_dir/$name" || failed=1
  done
  return $failed
}

# From the PTX that the software GPU reads, too, not from machine code that nvcc made.
part_record() {
  local failed=0 name names recorded log
  mkdir -p "$out/record"
  names=$(program_names)
  for name in $names; do
    log=$out/record/$name recorded=tests/data/recorded/$name.txt
    CUDA_FORCE_PTX_JIT=1 RAW_RESULTS=$log.raw run_one "$log" "$programs_dir/$name"
    { echo "# $(head -n 1 "$out/gpu.txt")" && stable_lines "$log.out"; } >"$log.txt"
    if [[ $(<"$log.status") -ne 0 ]]; then
      echo "FAILED  $name: exit status $(<"$log.status")"
      tail -n 20 "$log.out" "$log.err"
      failed=1
    elif [[ ! -e $recorded ]]; then
      mkdir -p "$(dirname "$recorded")"
      cp "$log.txt" "$recorded"
      echo "new     $recorded"
    else
      "$python" -P tests/framework/recorded.py "$recorded" "$log.txt" || failed=1
    fi
  done
  return $failed
}

part_runtimes() {
  local failed=0 n=0 name command list
  mkdir -p "$out/runtimes"
  list=$("$python" -P tests/framework/runtimes.py --driver nvidia)
  while IFS=$'\t' read -r -a command; do
    name=${command[0]}
    command=("${command[@]:1}")
    if [[ $name == LD_LIBRARY_PATH ]]; then
      export LD_LIBRARY_PATH=${command[0]}
    else
      n=$((n + 1))
      compare "$name" "$out/runtimes/$name" "${command[@]}" </dev/null || failed=1
    fi
  done <<<"$list"
  [[ $n -gt 0 ]] || die "tests/framework/runtimes.py named no runtime"
  n=$((n + 1))
  compare cudart-13-static "$out/runtimes/cudart-13-static" "$programs_dir/demo" || failed=1
  echo "figure: $n runtimes, native and remoted output equal: $([[ $failed -eq 0 ]] && echo yes || echo no)"
  return $failed
}

part_oracles() {
  mkdir -p "$out"
  "$python" -P tests/gpu/oracles.py >"$out/oracles.txt" && tail -n 1 "$out/oracles.txt" && return
  grep -v "^REFUSED" "$out/oracles.txt" | cut -c 1-300 | head -n 40
  grep -c "^REFUSED" "$out/oracles.txt" | sed 's/^/refused: /'
  return 1
}

part_life() { "$python" tests/gpu/life.py 60; }

part_faults() { "$python" -P tests/gpu/faults.py; }

part_stateful() {
  mkdir -p "$out"
  "$python" -P tests/differential/compare.py \
    "${PROGRAMS:-5000}" --share "${SHARE:-1/1}" --jobs "${JOBS:-10}" --seconds 420 \
    --driver nvidia --out "$out/stateful.json" | tee "$out/stateful.txt"
}

part_host() { "$python" -P tests/gpu/host.py; }

part_nvml() { "$python" -P tests/gpu/nvml.py "$out"; }

# What this driver gave before is made natively again only where kvgpu differs, and in a sample;
# NATIVE=again: all of it.
part_errors() {
  local recorded=tests/data/recorded/bad_calls.tsv known=() version
  version=$(head -n 1 "$out/gpu.txt" | sed 's/.*, //')
  if [[ ${NATIVE:-} != again ]] && head -n 1 "$recorded" | grep -qF ", $version:"; then
    known=(--known "$recorded")
    head -n 1 "$recorded" | sed 's/^#/known natively:/'
  fi
  "$python" -P tests/differential/errors.py --driver nvidia --share "${SHARE:-1/1}" --sample 300 \
    "${known[@]}" --limit-s 450 --out "$out/errors${SHARE:+.${SHARE%/*}}"
}

part_cases() {
  "$python" -P tests/gpu/cases.py "$out" --share "${SHARE:-1/1}" --only "${ONLY:-*}"
}

# $STARTS of them, several at once, within 7 minutes; one natively before.
part_starts() {
  local program=build/release/tests/loopback/process_starts runtime_dir status=0
  "$program" || { echo "FAILED  natively"; return 1; }
  runtime_dir=$(mktemp -d)
  mkdir -p "$out"
  "$python" -m kvgpu.host.kvgpud --runtime-dir "$runtime_dir" >"$out/starts.kvgpud.log" 2>&1 &
  local kvgpud=$!
  for _ in $(seq 100); do [[ -S $runtime_dir/kvgpud.sock ]] && break || sleep 0.1; done
  KVGPU_RUNTIME_DIR=$runtime_dir "$python" tests/framework/process_starts.py \
    "${STARTS:-2000}" "${JOBS:-12}" 420 "$program" | tee "$out/starts.txt" || status=$?
  kill "$kvgpud" && wait "$kvgpud" || true
  rm -rf "$runtime_dir"
  return $status
}

part_libraries() {
  local failed=0 name folders
  mkdir -p "$out/libraries"
  folders=$(python3 -P tests/gpu/libraries/build.py "$out/libraries/bin")
  for name in "$out"/libraries/bin/*; do
    LD_LIBRARY_PATH=$folders compare "$(basename "$name")" "$out/libraries/$(basename "$name")" "$name" ||
      failed=1
  done
  rm -rf "$out/libraries/bin"
  return $failed
}

part_workloads() {
  local names=() name
  for name in ${ONLY:-}; do names+=(--only "$name"); done
  "$python" -P tests/gpu/workloads/compare.py "$out/workloads" "${names[@]}" --part "${SHARE:-1/1}"
}

part_bench() {
  mkdir -p "$out/bench"
  local options=(--quick)
  [[ -z ${BENCH:-} ]] || read -r -a options <<<"$BENCH"
  PYTHONPATH=$PYTHONPATH:$PWD/tests:$PWD "$python" -m benchmarks --out "$out/bench" "${options[@]}" | tee "$out/bench.txt"
}

part_vm() {
  local names=() name
  for name in ${ONLY:-}; do names+=(--only "$name"); done
  "$python" -P tests/gpu/vm.py --out "$out" "${names[@]}"
}

# Everything, as `part` or `part:K/N` (its Kth share) and about how many seconds it takes.
units() {
  local k
  echo "starts 375"; echo "stateful 350"; echo "vm 330"; echo "faults 120"; echo "life 120"; echo "libraries 60"; echo "oracles 30"
  echo "programs 25"; echo "host 25"; echo "bench 120"; echo "nvml 20"; echo "runtimes 15"; echo "record 10"
  for k in 1 2; do echo "errors:$k/2 120"; done
  for k in 1 2 3 4; do echo "cases:$k/4 90"; done
  for k in 1 2 3 4 5 6 7 8; do echo "workloads:$k/8 100"; done
}

# units_of K/N: which of them the Kth of N calls does; the longest first, each to who has least.
units_of() {
  units | sort -k2,2nr -k1,1 | awk -v k="${1%/*}" -v n="${1#*/}" '{
    least = 1; for (i = 2; i <= n; i++) if (sum[i] + 0 < sum[least] + 0) least = i
    sum[least] += $2; if (least == k) print $1 }'
}

# What the programs load. A machine that has just started has it on a slow disk, and would read it page by
# page, for minutes.
read_libraries() {
  local places
  places=$(python3 -c 'import site; print(*site.getsitepackages())')
  # shellcheck disable=SC2016
  timeout 60 bash -c 'find $0 -type f -size +32k -print0 | xargs -0 -P 32 -n 4 cat' "$places" >/dev/null 2>&1 || true
}

at_once() {
  local folder failed=0 k list lists=() settings parts
  read_libraries
  folder=$(mktemp -d)
  for list in "$@"; do
    k=$((${#lists[@]} + 1))
    mkdir "$folder/$k"
    settings=$(tr ' ' '\n' <<<"$list" | grep = || true)
    parts=$(tr ' ' '\n' <<<"$list" | grep -v = || true)
    # shellcheck disable=SC2086
    OUT=$folder/$k timeout --kill-after=5 "${LIMIT_S:-570}" env AT_ONCE="$folder" $settings "$0" $parts >"$folder/$k/run.log" 2>&1 &
    lists+=("$!")
  done
  for k in "${!lists[@]}"; do
    wait "${lists[$k]}" || failed=1
    grep -hE '^(FAILED|slow|not run|figure|test-gpu:)' "$folder/$((k + 1))/run.log" || true
  done
  # A list whose time was over leaves what it had started in sessions of its own, on the GPU, too.
  for pid in $(grep -lsz "^AT_ONCE=$folder\$" /proc/[0-9]*/environ | cut -d/ -f3); do
    kill -KILL "$pid" 2>/dev/null || true
  done
  tar -C "$folder" -czf "$out/logs.tgz" .
  rm -rf "$folder"
  return $failed
}

main() {
  local parts=("$@") part failed=0 begun share=${SHARE:-}
  [[ ${#parts[@]} -gt 0 ]] || parts=(programs record oracles cases errors runtimes stateful starts life faults host nvml bench vm)
  command -v nvidia-smi >/dev/null || die "no nvidia-smi: this machine has no NVIDIA driver"
  mkdir -p "$out"
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee "$out/gpu.txt"
  unpack_build
  find_python
  [[ ${parts[0]} != --at-once ]] || { at_once "${parts[@]:1}"; return; }
  [[ ${parts[0]} != [0-9]*/[0-9]* ]] || mapfile -t parts < <(units_of "${parts[0]}")
  for part in "${parts[@]}"; do
    export SHARE=$share
    [[ $part != *:* ]] || { SHARE=${part#*:}; part=${part%%:*}; }
    declare -F "part_$part" >/dev/null || die "no part '$part' (programs, record, oracles, cases, errors, runtimes, stateful, starts, life, faults, host, nvml, libraries, workloads, bench, vm)"
    begun=$SECONDS
    # A part is a subshell, so that one that gives up does not end the others.
    (part_"$part") && status=0 || status=$?
    [[ $((SECONDS - begun)) -le $part_limit_s ]] || echo "test-gpu: $part is over its 8 minutes"
    echo "test-gpu: $part${SHARE:+ $SHARE}: status $status after $((SECONDS - begun)) s"
    [[ $status -eq 0 ]] || failed=1
  done
  [[ $failed -eq 0 ]] && echo "test-gpu: passed" || echo "test-gpu: failed (logs in $out)"
  return $failed
}

main "$@"
