#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show. Builds on any machine, runs there without a network:
#
#   scripts/gpu_check.sh build [DIR]        test programs, the bench, and cubins, into DIR
#   scripts/gpu_check.sh run [DIR] [OUT]    everything below on this machine's GPU, within eight minutes on an H200
#
# Each wrapper of an instruction against what it is to do; the conformance table, the golden data and the layer's faults on the real
# driver; the backend's own tests; compute-sanitizer (memory and races) over a part of the table; the same table over the GPU's Vulkan
# driver through wgpu; then timings against cuBLAS and, where PyTorch is installed, torch.matmul and its grouped product, and device
# memory as the driver counts it beside the accountant's figure.
#
# What a machine lacks (NVRTC, compute-sanitizer, a Vulkan driver, cuBLAS, PyTorch) is said and left out; a failure of what is there is
# told at the end, and makes the exit status 1. DIR is target/gpu_check unless given, OUT is DIR/out: a log of each part, summary.txt and
# results.json.
set -euo pipefail
usage() {
  echo "usage: scripts/gpu_check.sh build [DIR] | run [DIR] [OUT]" >&2
  exit 2
}
[ $# -ge 1 ] && [ $# -le 3 ] || usage
form=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
# A copy beside the test programs runs those.
default=$root/target/gpu_check
if [ -x "$here/conformance" ]; then default=$here; fi
dir=$(realpath -m "${2:-$default}")
# Seconds that all parts have together; each is also bounded by its own.
deadline=470

build() {
  cd "$root"
  mkdir -p "$dir"
  # Names of executables as cargo tells them.
  executables() {
    cargo "$@" --message-format=json | python3 -c '
import json, sys
for line in sys.stdin:
    artifact = json.loads(line)
    if artifact.get("executable"):
        print(artifact["target"]["name"], artifact["executable"])'
  }
  executables test --release --locked --features cuda --no-run --test conformance --test golden --test layer --test cuda |
    while read -r name path; do cp "$path" "$dir/$name"; done
  executables bench --locked --features cuda --no-run --bench cuda |
    while read -r _ path; do cp "$path" "$dir/bench"; done
  executables build --release --locked --features cuda --example devices --example cubins |
    while read -r name path; do cp "$path" "$dir/$name"; done
  rm -rf "$dir/cubins.d"
  "$dir/cubins" "$dir/cubins.d" >"$dir/cubins.txt"
  LRMOE_CUBIN_DIR="$dir/cubins.d" "$dir/cuda" wrappers::compile
  cp scripts/gpu_torch.py scripts/gpu_check.sh "$dir/"
  if [ -n "${LRMOE_GOLDEN_DIR:-}" ]; then
    rm -rf "$dir/golden.d" && cp -r "$LRMOE_GOLDEN_DIR" "$dir/golden.d"
  fi
  du -sh "$dir"
}

run() {
  [ -x "$dir/conformance" ] || { echo "$dir holds no test programs: scripts/gpu_check.sh build $dir" >&2; exit 2; }
  local out failed=0
  out=$(realpath -m "${1:-$dir/out}")
  rm -rf "$out" && mkdir -p "$out"
  export LRMOE_CUBIN_DIR="$dir/cubins.d" LRMOE_CACHE_DIR="$out/cache" LRMOE_REQUIRE_CUDA=1
  unset LRMOE_FAKE_CUDA
  if [ -d "$dir/golden.d" ]; then export LRMOE_GOLDEN_DIR="$dir/golden.d"; fi
  say() { echo "$*" | tee -a "$out/summary.txt"; }
  # part NAME SECONDS COMMAND...: its log, how it ended and how long it took.
  part() {
    local name=$1 limit=$2 begin=$SECONDS status=0 left=$((deadline - SECONDS))
    shift 2
    if [ $left -le 0 ]; then
      say "LATE    $name: no time is left for it"
      failed=1
      return
    fi
    limit=$((left < limit ? left : limit))
    timeout "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
    local last
    last=$(grep -E '^test result|^written' "$out/$name.log" | tail -1 || true)
    case $status in
      0) say "ok      $name ($((SECONDS - begin)) s) $last" ;;
      124) say "SLOW    $name: not finished within $limit s"; failed=1 ;;
      *) say "FAILED  $name (status $status, $((SECONDS - begin)) s) $last"; failed=1 ;;
    esac
  }
  missing() { say "missing $1"; }

  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | tee -a "$out/summary.txt" || missing nvidia-smi
  part devices 30 "$dir/devices"
  # Tests of what a compiler makes were run where the programs were built.
  part wrappers 60 "$dir/cuda" wrappers --skip wrappers::compile
  part backend 90 "$dir/cuda" --skip wrappers --skip cubins --skip cache --skip fake
  part conformance 120 "$dir/conformance" ::cuda
  part golden 60 "$dir/golden" ::cuda
  part faults 90 "$dir/layer" fault_ --skip ::cpu --skip ::wgpu
  part timings 150 "$dir/bench" 9 "$out/results.json"
  if python3 -c 'import torch' 2>/dev/null; then
    part torch 90 python3 "$dir/gpu_torch.py" "$out/results.json"
  else
    missing PyTorch
  fi
  local sanitizer
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -1 || true)
  if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck synccheck; do
      part "sanitizer-$tool" 60 "$sanitizer" --tool "$tool" --error-exitcode 9 "$dir/conformance" ::cuda --skip same_bits --skip hundred_runs
    done
  else
    missing compute-sanitizer
  fi
  if "$dir/devices" 2>/dev/null | grep -q '^wgpu:.*NVIDIA'; then
    LRMOE_REQUIRE_WGPU=1 part wgpu-conformance 120 "$dir/conformance" ::wgpu
    LRMOE_REQUIRE_WGPU=1 part wgpu-golden 60 "$dir/golden" ::wgpu
  else
    missing "a Vulkan driver of the GPU"
  fi
  cat "$out/timings.log" "$out/torch.log" 2>/dev/null || true
  say "$SECONDS s in all"
  return $failed
}

case $form in
  build) [ $# -le 2 ] || usage; build ;;
  run) run "${3:-}" ;;
  *) usage ;;
esac
