#!/usr/bin/env bash
# The CUDA kernels on the CPU under ThreadSanitizer (races) and AddressSanitizer (bounds), over the conformance table; no GPU is needed.
#
#   scripts/cuda_sanitize.sh           every schedule, copies early, late and mixed
#   scripts/cuda_sanitize.sh --short   one schedule of each, another one for each day's number: for every change
#   scripts/cuda_sanitize.sh [--short] FILTER...   only trials whose names contain one of these
#
# Needs g++ (or LRMOE_CXX) with its sanitizers, and NVRTC (LRMOE_NVRTC).
set -euo pipefail
cd "$(dirname "$0")/.."

short=
if [ "${1:-}" = --short ]; then
  short=yes
  shift
fi
for filter in "$@"; do
  case $filter in
    -*) echo "usage: scripts/cuda_sanitize.sh [--short] [FILTER...]" >&2; exit 2 ;;
  esac
done
filters=("${@:-}")

compiler=${LRMOE_CXX:-${CXX:-g++}}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

export LRMOE_FAKE_CUDA=1 LRMOE_REQUIRE_CUDA=1
program=$(cargo test --locked --release --features cuda --test conformance --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"name":"conformance".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
[ -n "$program" ] || { echo "conformance does not build" >&2; exit 1; }

# run SANITIZER SCHEDULE COPIES SEED THREADS: the sanitizer has to be in the process before anything else is. Trials that only
# repeat others are left out.
run() {
  local library log status=0
  local skip=()
  case $1 in
    # Groups that overlap, as falling offsets make them, write rows twice: refused when they have run, and races until then.
    thread) library=$("$compiler" -print-file-name=libtsan.so) skip=(--skip offsets_) ;;
    address) library=$("$compiler" -print-file-name=libasan.so) ;;
  esac
  for filter in "${filters[@]}"; do
    log="$out/log"
    # Only the kernels are instrumented: what the host does with its own locks is not looked at.
    env LD_PRELOAD="$library" LRMOE_FAKE_CUDA_SANITIZER="$1" LRMOE_SHIM_SCHEDULE="$2" LRMOE_SHIM_COPIES="$3" \
      LRMOE_SHIM_SEED="$4" LRMOE_SHIM_THREADS="$5" \
      TSAN_OPTIONS="history_size=0:ignore_noninstrumented_modules=1:report_signal_unsafe=0:halt_on_error=0:exitcode=66" \
      ASAN_OPTIONS="detect_leaks=0:detect_odr_violation=0:handle_segv=1:alloc_dealloc_mismatch=0" \
      "$program" --test-threads 2 --skip ::cpu --skip ::wgpu --skip ::same_bits "${skip[@]}" "${filter:-::cuda}" >"$log" 2>&1 || status=$?
    grep -q '^test result: ok. [1-9][0-9]* passed' "$log" || status=1
    if [ $status -ne 0 ] || grep -q "WARNING: ThreadSanitizer\|ERROR: AddressSanitizer\|fake CUDA:" "$log"; then
      grep -v "\.\.\. ok\|\.\.\. ignored" "$log" | head -200
      echo "FAILED: $1, $2 first, copies $3, seed $4, $5 threads${filter:+, $filter}" >&2
      exit 1
    fi
    echo "$1, $2 first, copies $3, seed $4, $5 threads: $(grep '^test result' "$log")"
  done
}

# The compilers see each kernel once without, once with each sanitizer; what they made is kept.
if [ -n "$short" ]; then
  seed=$(($(date +%s) / 86400))
  schedules=(first last random)
  copies=(late early mixed)
  run thread "${schedules[$((seed % 3))]}" "${copies[$((seed / 3 % 3))]}" "$seed" 1
  run address "${schedules[$(((seed + 1) % 3))]}" "${copies[$(((seed / 3 + 1) % 3))]}" "$seed" 1
else
  for sanitizer in thread address; do
    for schedule in first last random; do
      for copies in late early mixed; do
        run "$sanitizer" "$schedule" "$copies" 1 1
      done
    done
  done
  run thread random mixed 2 2
fi
