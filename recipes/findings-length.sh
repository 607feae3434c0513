#!/usr/bin/env bash
# How long runs have to be: the dev score of five settings every ten steps, for 400 steps. From these curves
# docs/make_findings.py chooses the length of the runs behind docs/findings.md, before these are run.
STEPS=${STEPS:-400}
source "$(dirname "$0")/common.sh"

triplets nli.csv
for options in UNSUP SUP; do
  set_option --eval-every 10 "$options"
  set_option --save-every 100 "$options"
done
train dropout "${UNSUP[@]}" --train-file "$WIKI"
train no-dropout "${UNSUP[@]}" --train-file "$WIKI" --dropout-mode none
train fixed-mask "${UNSUP[@]}" --train-file "$WIKI" --dropout-mode fixed
train delete-one-word "${UNSUP[@]}" --train-file "$WIKI" --augment delete-one
train supervised "${SUP[@]}" --train-file "$OUT/nli.csv"

compare "$OUT" --against simcse.3 --measures "STS-B dev" -o "$OUT/comparison.json" --force
