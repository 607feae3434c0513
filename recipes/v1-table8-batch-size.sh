#!/usr/bin/env bash
# Table 8 of version 1 of the SimCSE paper: batch size of the supervised run. Batches above 64 rows go through the
# encoder in parts (cached gradients), so any of them fits. small takes as many triplets with each of them, 64 x STEPS,
# and makes one step at least.
source "$(dirname "$0")/common.sh"

triplets nli.csv
for size in 32 64 128 256 512 1024; do
  options=("${SUP[@]}")
  set_option --batch-size "$size" options
  if [ "$SCALE" = small ]; then
    n_steps=$((64 * ${STEPS:-100} / size))
    set_option --max-steps $((n_steps > 0 ? n_steps : 1)) options
  fi
  train "batch-$size" "${options[@]}" --train-file "$OUT/nli.csv" --micro-batch-size 192
done

for size in 32 64 128 256 512 1024; do
  beside v1.8 "batch-$size" "batch size $size"
done
compare "$OUT" --against v1.8 -o "$OUT/comparison.json" --force
