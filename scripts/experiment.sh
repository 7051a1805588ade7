#!/usr/bin/env bash
# The published experiment on virtual ranks: trains every cell, times them together, prints the tables and draws the charts.
#
#   scripts/experiment.sh [full|quick|smoke] [OUT]
#
# full    two models, two batch sizes, three seeds; the smaller batch with weak balancing (OUT/weak); the ablation of the selection
#         on one of these cells (OUT/ablation): some two hours on two cores
# quick   one cell of the same sizes, less trained: within ten minutes on two cores, the build not counted
# smoke   a toy that only shows that everything runs: seconds
#
# OUT is runs/experiment-FORM unless given. A call that was stopped goes on where it was; finished cells are not trained again.
# The text is the King James Bible of the Debian package bible-kjv; smoke takes the project's own sources. Cells are trained in
# parallel, one core each, and timed one after the other at the end, when nothing else should run.
set -euo pipefail
usage() {
  echo "usage: scripts/experiment.sh [full|quick|smoke] [OUT]" >&2
  exit 2
}
[ $# -le 2 ] || usage
form=${1-full}
out=${2-}
case $out in
  -*) usage ;;
  /* | "") ;;
  *) out=$PWD/$out ;;
esac
cd "$(dirname "$0")/.."
out=${out:-runs/experiment-$form}
common=(--ranks 8 --ranks-per-node 4 --cluster 8xa100)
policies=all
case $form in
  full)
    presets=(qwen3-30b-a3b glm-4.5-air) balancings=(usual) batches=(16 32) seeds=(1 2 3)
    common+=(--steps 300 --time-every 30)
    policies=fixed,fixed-waves,eplb,llep,symi,symi-drop,lrmoe,lrmoe-1copy
    ;;
  quick)
    presets=(qwen3-30b-a3b) balancings=(usual) batches=(16) seeds=(1)
    common+=(--steps 120 --time-every 20 --activations stash)
    ;;
  smoke)
    presets=(glm-4.5-air) balancings=(weak) batches=(4) seeds=(1)
    common+=(--steps 6 --time-every 2 --hidden 32 --experts 16 --top-k 3)
    ;;
  *) usage ;;
esac

mkdir -p "$out"
if [ "$form" != smoke ]; then
  text=$out/kjv.txt
  if [ ! -s "$text" ]; then
    if ! command -v bible >/dev/null; then
      echo "the text is missing: install the Debian package bible-kjv (apt-get install bible-kjv)" >&2
      exit 2
    fi
    # Verses alone, without their references.
    bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$text.part"
    mv "$text.part" "$text"
  fi
  common+=(--corpus "$text")
fi

cargo build --release --locked --target-dir target --example train
train=target/release/examples/train
join() { local IFS=,; echo "$*"; }

# One core a cell: a virtual rank is one core too. Freed memory is kept, since every step asks for the same again.
export RAYON_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=67108864

# Does $1 (train or report) with the cells of the arrays above in $2, under the policies $3.
cells() {
  local what=$1 out=$2 policies=$3
  local options=("${common[@]}" --policy "$policies" --out "$out")
  if [ "$what" = train ]; then
    for seed in "${seeds[@]}"; do
      for batch in "${batches[@]}"; do
        for preset in "${presets[@]}"; do
          for balancing in "${balancings[@]}"; do
            echo "--preset $preset --balancing $balancing --batch $batch --seed $seed"
          done
        done
      done
    done | xargs -P "$(nproc)" -L 1 "$train" "${options[@]}" --train-only
    return
  fi
  "$train" "${options[@]}" --preset "$(join "${presets[@]}")" --balancing "$(join "${balancings[@]}")" \
    --batch "$(join "${batches[@]}")" --seed "${seeds[0]}" --seeds "${#seeds[@]}" | tee "$out/tables.txt.part"
  mv "$out/tables.txt.part" "$out/tables.txt"
}

for what in train report; do
  cells "$what" "$out" "$policies"
  if [ "$form" = full ]; then
    (balancings=(weak) batches=(16); cells "$what" "$out/weak" "$policies")
    (presets=(qwen3-30b-a3b) batches=(16); cells "$what" "$out/ablation" fixed,lrmoe,lrmoe-topq)
  fi
done
