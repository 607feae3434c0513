#!/usr/bin/env bash
# SimCSE Table 5 (also version 1 and tables 6 and 7 of the report): the seven STS tasks.
# full scores the released checkpoints and the untrained encoder; TRAIN=1 trains the two SimCSE models as well.
# small trains them on the packaged encoder. GLOVE is a GloVe text file for the first row. Systems whose weights
# are not public (USE, IS-BERT, BERT-flow, ...) take their row by --embeddings, see docs/reproducing.md.
source "$(dirname "$0")/common.sh"

sts() { # NAME OPTION...: score a system, keeping every pair for the paired tests
  [ -s "$OUT/$1.json" ] || simcse eval sts --data-dir "$SIMCSE_DATA" --ci --save-scores "$OUT/$1.pairs.jsonl" \
    -o "$OUT/$1.json" --force "${@:2}"
}

row() { # NAME ROW GROUP: a system next to its published row
  compare "$1=$OUT/$1.json" --against simcse.5 --row "$2" --group "$3" "${@:4}"
}

if [ "$SCALE" = small ] || [ -n "${TRAIN:-}" ]; then
  triplets nli.csv
  train unsup "${UNSUP[@]}" --train-file "$WIKI"
  train sup "${SUP[@]}" --train-file "$OUT/nli.csv"
  sts trained-unsup --model "$OUT/unsup"
  sts trained-sup --model "$OUT/sup"
  row trained-unsup SimCSE-BERT-base unsupervised
  row trained-sup SimCSE-BERT-base supervised
fi
sts first-last --model "$MODEL" --pooler avg_emb_last --force-pooler
row first-last "BERT-base (first-last avg.)" unsupervised
if [ -n "${GLOVE:-}" ]; then
  sts glove --vectors "$GLOVE"
  row glove "GloVe embeddings (avg.)" unsupervised
fi
if [ "$SCALE" = full ]; then
  for kind in unsup sup; do
    for encoder in bert-base-uncased roberta-base roberta-large; do
      sts "$kind-$encoder" --model "princeton-nlp/$kind-simcse-$encoder"
    done
    group=supervised
    [ "$kind" = sup ] || group=unsupervised
    row "$kind-bert-base-uncased" SimCSE-BERT-base "$group" --check --tolerance 0.01
    row "$kind-roberta-base" SimCSE-RoBERTa-base "$group" --check --tolerance 0.01
    row "$kind-roberta-large" SimCSE-RoBERTa-large "$group" --check --tolerance 0.01
  done
fi
results=()
for result in "$OUT"/*.json; do
  [[ $result == */comparison.json || $result == *.manifest.json ]] || results+=("$result")
done
compare "${results[@]}" --against simcse.5 -o "$OUT/comparison.json" --force
