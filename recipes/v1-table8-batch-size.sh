#!/usr/bin/env bash
# Table 8 of version 1 of the SimCSE paper: batch size of the supervised run. Batches above 64 rows go through the
# encoder in parts (cached gradients), so any of them fits. small sees every triplet once, whatever the batch size.
source "$(dirname "$0")/common.sh"
[ "$SCALE" = full ] || SUP=(--mode sup --pooler cls --lr 5e-5 --epochs 1 --eval-every 1000 --precision "${PRECISION:-auto}")

triplets nli.csv
for size in 32 64 128 256 512 1024; do
  train "batch-$size" "${SUP[@]}" --train-file "$OUT/nli.csv" --batch-size "$size" --micro-batch-size 192
done

for size in 32 64 128 256 512 1024; do
  beside v1.8 "batch-$size" "batch size $size"
done
simcse compare "$OUT" --against v1.8 -o "$OUT/comparison.json" --force
