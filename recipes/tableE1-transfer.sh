#!/usr/bin/env bash
# SimCSE Table E.1 (also the transfer table of version 1): seven classification tasks on frozen vectors.
# GLOVE is a GloVe text file for the first row; systems whose weights are not public take their row by --embeddings.
source "$(dirname "$0")/common.sh"

transfer() { # NAME OPTION...
  [ -s "$OUT/$1.json" ] || simcse eval transfer --data-dir "$SIMCSE_DATA" -o "$OUT/$1.json" "${@:2}"
}

row() { # NAME ROW GROUP
  simcse compare "$1=$OUT/$1.json" --against simcse.E.1 --row "$2" --group "$3"
}

[ -z "${GLOVE:-}" ] || { transfer glove --vectors "$GLOVE"; row glove "GloVe embeddings (avg.)" unsupervised; }
if [ "$SCALE" = full ]; then
  transfer bert-average --model "$MODEL" --pooler avg
  row bert-average "Avg. BERT embeddings" unsupervised
  for encoder in bert-base-uncased roberta-base roberta-large; do
    transfer "unsup-$encoder" --model "princeton-nlp/unsup-simcse-$encoder"
    transfer "sup-$encoder" --model "princeton-nlp/sup-simcse-$encoder"
  done
  for group in unsupervised supervised; do
    row "${group%ervised}-bert-base-uncased" SimCSE-BERT-base "$group"
    row "${group%ervised}-roberta-base" SimCSE-RoBERTa-base "$group"
    row "${group%ervised}-roberta-large" SimCSE-RoBERTa-large "$group"
  done
else
  transfer average --model "$MODEL" --protocol fast --tasks "${TASKS:-MRPC,TREC}"
  row average "Avg. BERT embeddings" unsupervised
fi
results=()
for result in "$OUT"/*.json; do
  [ "$result" = "$OUT/comparison.json" ] || results+=("$result")
done
simcse compare "${results[@]}" --against simcse.E.1 -o "$OUT/comparison.json" --force
