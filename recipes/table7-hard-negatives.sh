#!/usr/bin/env bash
# SimCSE Table 7: kind and weight of the hard negatives.
source "$(dirname "$0")/common.sh"

triplets contradiction.csv
triplets neither.csv --hard-negative none
triplets both.csv --hard-negative both
train none "${SUP[@]}" --train-file "$OUT/neither.csv"
for alpha in 0.5 1.0 2.0; do
  train "alpha-$alpha" "${SUP[@]}" --train-file "$OUT/contradiction.csv" --hard-neg-alpha "$alpha"
done
train both "${SUP[@]}" --train-file "$OUT/both.csv"

beside simcse.7 none "none"
for alpha in 0.5 1.0 2.0; do
  beside simcse.7 "alpha-$alpha" "contradiction, alpha=$alpha"
done
beside simcse.7 both "contradiction + neutral, alpha=1.0"
compare "$OUT" --against simcse.7 -o "$OUT/comparison.json" --force
