#!/usr/bin/env bash
# SimCSE Table D.1: temperature of the supervised loss, and the plain dot product.
source "$(dirname "$0")/common.sh"

triplets nli.csv
train dot "${SUP[@]}" --train-file "$OUT/nli.csv" --similarity dot --temperature 1
for tau in 0.001 0.01 0.05 0.1 1; do
  train "tau-$tau" "${SUP[@]}" --train-file "$OUT/nli.csv" --temperature "$tau"
done

beside simcse.D.1 dot "dot product"
for tau in 0.001 0.01 0.05 0.1 1; do
  beside simcse.D.1 "tau-$tau" "cosine, tau=$tau"
done
compare "$OUT" --against simcse.D.1 -o "$OUT/comparison.json" --force
