#!/usr/bin/env bash
# SimCSE Table 3 (also table 4 of version 1, table 5 of the report): strength of the dropout.
source "$(dirname "$0")/common.sh"

for p in 0.0 0.01 0.05 0.1 0.15 0.2 0.5; do
  train "p-$p" "${UNSUP[@]}" --train-file "$WIKI" --dropout "$p"
done
train fixed "${UNSUP[@]}" --train-file "$WIKI" --dropout 0.1 --dropout-mode fixed

for p in 0.0 0.01 0.05 0.1 0.15 0.2 0.5; do
  beside simcse.3 "p-$p" "p=$p"
done
beside simcse.3 fixed "Fixed 0.1"
simcse compare "$OUT" --against simcse.3 --against repro.5 --measures "STS-B dev" -o "$OUT/comparison.json" --force
