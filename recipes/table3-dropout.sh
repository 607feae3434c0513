#!/usr/bin/env bash
# SimCSE Table 3 (also table 4 of version 1, table 5 of the report): strength of the dropout.
source "$(dirname "$0")/common.sh"

names=()
for p in 0.0 0.01 0.05 0.1 0.15 0.2 0.5; do
  train "p-$p" "${UNSUP[@]}" --train-file "$WIKI" --dropout "$p"
  sts "p-$p-sick" "$OUT/p-$p" --tasks SICKRelatedness
  names+=("p-$p")
done
train fixed "${UNSUP[@]}" --train-file "$WIKI" --dropout 0.1 --dropout-mode fixed
names+=(fixed)

for p in 0.0 0.01 0.05 0.1 0.15 0.2 0.5; do
  beside simcse.3 "p-$p" "p=$p"
  [ "$p" = 0.05 ] || beside v1.4 "p-$p" "p=$p"
  compare "p-$p=$OUT/p-$p" "p-$p=$OUT/p-$p-sick.json" --against repro.5 --row "p=$p"
done
beside simcse.3 fixed "Fixed 0.1"
beside v1.4 fixed "Fixed 0.1"
compare "${names[@]/#/$OUT/}" --against simcse.3 --against repro.5 --measures "STS-B dev" \
  -o "$OUT/comparison.json" --force
