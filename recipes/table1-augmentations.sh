#!/usr/bin/env bash
# SimCSE Table 1 (also table 2 of version 1, table 4 of the report): positives by text augmentation.
# The synonym row needs WordNet (SIMCSE_WORDNET, or where `simcse augment` finds it), the MLM rows a masked-LM
# checkpoint (MLM_MODEL); without them these rows are left out.
source "$(dirname "$0")/common.sh"

names=()
trained() { # NAME OPTION...: train, and score SICK-R as the report does
  train "$1" "${UNSUP[@]}" "${@:2}"
  sts "$1-sick" "$OUT/$1" --tasks SICKRelatedness
  names+=("$1")
}

augmented() { # NAME METHOD [OPTION...]: augment the sentences, then train on the pairs
  [ -s "$OUT/$1.csv" ] || simcse augment "$WIKI" -o "$OUT/$1.csv" --method "$2" --seed 42 "${@:3}"
  trained "$1" --train-file "$OUT/$1.csv"
}

row() { # NAME ROW TABLE...: dev score, and SICK-R where the table has it, beside published rows
  if [ -e "$OUT/$1-sick.json" ]; then
    for table in "${@:3}"; do compare "$1=$OUT/$1" "$1=$OUT/$1-sick.json" --against "$table" --row "$2"; done
  fi
}

trained none --train-file "$WIKI"
for percent in 10 20 30; do
  augmented "crop-$percent" crop --rate "0.${percent%0}"
  augmented "delete-$percent" delete --rate "0.${percent%0}"
done
augmented delete-one delete-one
trained delete-one-no-dropout --train-file "$OUT/delete-one.csv" --dropout-mode none
if has_wordnet; then augmented synonym synonym; fi
if [ -n "${MLM_MODEL:-}" ]; then
  augmented mlm mlm --rate 0.15 --model "$MLM_MODEL"
  augmented crop-mlm crop:0.1+mlm:0.15 --model "$MLM_MODEL"
fi

row none "None (unsup. SimCSE)" simcse.1 v1.2 repro.4
for percent in 10 20 30; do
  row "crop-$percent" "Crop $percent%" simcse.1 v1.2
  row "delete-$percent" "Word deletion $percent%" simcse.1 v1.2 repro.4
done
row delete-one "Delete one word" simcse.1 v1.2 repro.4
row delete-one-no-dropout "Delete one word, w/o dropout" simcse.1 v1.2
row synonym "Synonym replacement" simcse.1
row mlm "MLM 15%" simcse.1 v1.2
row crop-mlm "Crop 10% + MLM 15%" v1.2
compare "${names[@]/#/$OUT/}" --against simcse.1 --against repro.4 --measures "STS-B dev" \
  -o "$OUT/comparison.json" --force
