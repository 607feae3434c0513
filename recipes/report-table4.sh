#!/usr/bin/env bash
# Table 4 and Figure 1 of the reproducibility report: its ten methods, as its code has them. Crop keeps a prefix of the
# characters, synonyms replace up to 30% of the words, and "MLM 15%" is the auxiliary masked-LM loss on identical pairs.
# Alignment and uniformity are measured every 10 steps (every 125 at full scale).
source "$(dirname "$0")/common.sh"
if [ "$SCALE" = small ]; then
  set_option --eval-every 10 UNSUP
  set_option --save-every "${STEPS:-100}" UNSUP
fi

names=()
method() { # NAME ROW OPTION...: train on the sentences, score SICK-R, and compare
  train "$1" "${UNSUP[@]}" --train-file "$WIKI" "${@:3}"
  sts "$1-sick" "$OUT/$1" --tasks SICKRelatedness
  compare "$1=$OUT/$1" "$1=$OUT/$1-sick.json" --against repro.4 --row "$2"
  names+=("$1")
}

method none "None (unsup. SimCSE)"
for percent in 10 20 30; do
  method "crop-$percent" "Crop $percent%" --augment "crop-prefix-chars:0.${percent%0}"
  method "delete-$percent" "Word deletion $percent%" --augment "delete:0.${percent%0}"
done
method delete-one "Delete one word" --augment delete-one
if has_wordnet; then method synonym "Synonym replacement" --augment synonym:0.3; fi
method mlm "MLM 15%" --mlm-weight 0.1

simcse analyze trace "${names[@]/#/$OUT/}" --plot "$OUT/figure1.png" --force
compare "${names[@]/#/$OUT/}" --against repro.4 --measures "STS-B dev" -o "$OUT/comparison.json" --force
