#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh TARGET SECONDS: fuzzes for so long, from the seeds and what earlier runs have found. An input
# that fails is left in build/fuzz/artifacts.
set -euo pipefail

target=${1:?usage: run.sh TARGET SECONDS} seconds=${2:?usage: run.sh TARGET SECONDS}
build=build/fuzz
corpus=$build/corpus/$target seeds=$build/seeds/$target
mkdir -p "$corpus" "$seeds" "$build/artifacts"
options=(-max_len=4096)
case $target in
  frames | agent_stream) ;;
  ptx | fatbin) options=(-max_len=32768) ;;  # the build makes their seeds
  *) $build/tests/fuzz/fuzz_seeds "$seeds" ;;
esac
if [[ $target == ptx ]]; then
  cat "$seeds"/{spin,capture}.ptx >"$seeds/linked.ptx"  # what the linker makes
  cat "$seeds"/*.ptx | grep -oE '[.%]?[a-z_][a-z0-9_.]*' | sort -u | sed 's/.*/"&"/' >$build/ptx.dict
  options+=("-dict=$build/ptx.dict")
fi

log=$build/$target.log
# The quarantine of freed memory is kept small: each session has queues of some MiB.
export ASAN_OPTIONS=quarantine_size_mb=32:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
symbolizer=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer || true)
[[ -z $symbolizer ]] || export ASAN_SYMBOLIZER_PATH=$symbolizer UBSAN_SYMBOLIZER_PATH=$symbolizer
$build/tests/fuzz/fuzz_"$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=3000 \
  "${options[@]}" -print_final_stats=1 -artifact_prefix="$build/artifacts/$target-" \
  "$corpus" "$seeds" >"$log" 2>&1 || { tail -n 60 "$log"; exit 1; }
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
grep -E '^(figure|never)' "$log" || true
echo "figure: $target: $runs inputs in $seconds s, none failed"
