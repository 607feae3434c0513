#!/usr/bin/env bash
# SimCSE Table 1 (also table 2 of version 1, table 4 of the report): positives by text augmentation.
# The synonym row needs WordNet (SIMCSE_WORDNET, or where `simcse augment` finds it), the MLM row a masked-LM
# checkpoint (MLM_MODEL); without them these rows are left out.
source "$(dirname "$0")/common.sh"

augmented() { # NAME METHOD [OPTION...]: augment the sentences, then train on the pairs
  local name=$1 method=$2
  [ -s "$OUT/$name.csv" ] || simcse augment "$WIKI" -o "$OUT/$name.csv" --method "$method" --seed 42 "${@:3}"
  train "$name" "${UNSUP[@]}" --train-file "$OUT/$name.csv"
}

train none "${UNSUP[@]}" --train-file "$WIKI"
for percent in 10 20 30; do
  augmented "crop-$percent" crop --rate "0.${percent%0}"
  augmented "delete-$percent" delete --rate "0.${percent%0}"
done
augmented delete-one delete-one
train delete-one-no-dropout "${UNSUP[@]}" --train-file "$OUT/delete-one.csv" --dropout-mode none
[ -z "${SIMCSE_WORDNET:-}" ] || augmented synonym synonym --wordnet-dir "$SIMCSE_WORDNET"
[ -z "${MLM_MODEL:-}" ] || augmented mlm mlm --rate 0.15 --model "$MLM_MODEL"

beside simcse.1 none "None (unsup. SimCSE)"
for percent in 10 20 30; do
  beside simcse.1 "crop-$percent" "Crop $percent%"
  beside simcse.1 "delete-$percent" "Word deletion $percent%"
done
beside simcse.1 delete-one "Delete one word"
beside simcse.1 delete-one-no-dropout "Delete one word, w/o dropout"
[ ! -d "$OUT/synonym" ] || beside simcse.1 synonym "Synonym replacement"
[ ! -d "$OUT/mlm" ] || beside simcse.1 mlm "MLM 15%"
simcse compare "$OUT" --against simcse.1 --against repro.4 --measures "STS-B dev" -o "$OUT/comparison.json" --force
