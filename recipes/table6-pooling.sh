#!/usr/bin/env bash
# SimCSE Table 6: which vector stands for the sentence at test time; with the transfer cells of version 1, Table 9 (mean
# dev accuracy in the fast protocol; small takes TASKS, TREC by default).
source "$(dirname "$0")/common.sh"

score() { # NAME RUN POOLER: dev score of a run under a pooler
  [ -s "$OUT/$1.json" ] || simcse eval sts --model "$OUT/$2" --data-dir "$SIMCSE_DATA" --split dev \
    --tasks STSBenchmark --pooler "$3" --force-pooler -o "$OUT/$1.json"
}

transfer() { # NAME RUN ROW OPTION...: dev accuracy of a supervised run beside the row of version 1
  [ -s "$OUT/$1.json" ] || simcse eval transfer --model "$OUT/$2" --data-dir "$SIMCSE_DATA" --protocol fast \
    -o "$OUT/$1.json" "${@:4}"
  compare "$1=$OUT/$2" "$1=$OUT/$1.json" --against v1.9 --row "$3"
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
  set_option --pooler avg_emb_last options
  train "$mode-average" "${options[@]}" --train-file "$file"
  compare "w/ MLP=$OUT/$mode-mlp.json" --against simcse.6 --row "[CLS] w/ MLP, $column"
  compare "w/ MLP (train)=$OUT/$mode-mlp-train.json" --against simcse.6 --row "[CLS] w/ MLP (train), $column"
  compare "w/o MLP=$OUT/$mode-no-mlp.json" --against simcse.6 --row "[CLS] w/o MLP, $column"
  beside simcse.6 "$mode-average" "First-last avg., $column"
done
TASKS=${TASKS:-TREC}
[ "$SCALE" = small ] || TASKS=MR,CR,SUBJ,MPQA,SST2,TREC,MRPC
transfer sup-cls-transfer sup "[CLS]" --tasks "$TASKS"
transfer sup-average-transfer sup-average "First-last avg." --tasks "$TASKS"
compare "$OUT"/*-mlp*.json "$OUT"/*sup-average --against simcse.6
