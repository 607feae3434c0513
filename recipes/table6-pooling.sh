#!/usr/bin/env bash
# SimCSE Table 6: which vector stands for the sentence at test time.
source "$(dirname "$0")/common.sh"

score() { # NAME RUN POOLER: dev score of a run under a pooler
  [ -s "$OUT/$1.json" ] || simcse eval sts --model "$OUT/$2" --data-dir "$SIMCSE_DATA" --split dev \
    --tasks STSBenchmark --pooler "$3" --force-pooler -o "$OUT/$1.json"
}

triplets nli.csv
for mode in unsup sup; do
  file=$WIKI options=("${UNSUP[@]}") column=Unsup.
  [ "$mode" = unsup ] || file=$OUT/nli.csv options=("${SUP[@]}") column=Sup.
  train "$mode" "${options[@]}" --train-file "$file"
  train "$mode-bare" "${options[@]}" --train-file "$file" --head none
  score "$mode-mlp" "$mode" cls
  score "$mode-mlp-train" "$mode" cls_before_pooler
  score "$mode-no-mlp" "$mode-bare" cls_before_pooler
  train "$mode-average" "${options[@]}" --train-file "$file" --pooler avg_emb_last
  simcse compare "w/ MLP=$OUT/$mode-mlp.json" --against simcse.6 --row "[CLS] w/ MLP, $column"
  simcse compare "w/ MLP (train)=$OUT/$mode-mlp-train.json" --against simcse.6 --row "[CLS] w/ MLP (train), $column"
  simcse compare "w/o MLP=$OUT/$mode-no-mlp.json" --against simcse.6 --row "[CLS] w/o MLP, $column"
  beside simcse.6 "$mode-average" "First-last avg., $column"
done
simcse compare "$OUT"/*-mlp*.json "$OUT"/*sup-average --against simcse.6
