#!/usr/bin/env bash
# SimCSE Table E.1 (also the transfer table of version 1): seven classification tasks on frozen vectors.
# GLOVE is a GloVe text file for the first row, and with INFERSENT (a checkpoint) for the InferSent row; TRAIN=1 trains
# the rows with the masked-LM term. Systems whose weights are not public take their row by --embeddings.
source "$(dirname "$0")/common.sh"

transfer() { # NAME OPTION...
  [ -s "$OUT/$1.json" ] || simcse eval transfer --data-dir "$SIMCSE_DATA" -o "$OUT/$1.json" "${@:2}"
}

row() { # NAME ROW GROUP
  compare "$1=$OUT/$1.json" --against simcse.E.1 --row "$2" --group "$3"
}

with_mlm() { # GROUP ENCODER MODEL OPTION...: train with the masked-LM term, then score
  MODEL=$3 train "$1-$3-mlm" --config "simcse-$1-$3" --mlm-weight 0.1 "${@:4}"
  transfer "$1-$3-mlm-transfer" --model "$OUT/$1-$3-mlm"
  row "$1-$3-mlm-transfer" "SimCSE-$2 w/ MLM" "$1ervised"
}

if [ -n "${GLOVE:-}" ] && [ -n "${INFERSENT:-}" ]; then
  transfer infersent --vectors "$GLOVE" --bilstm "$INFERSENT"
  row infersent InferSent-GloVe supervised
fi
[ -z "${GLOVE:-}" ] || { transfer glove --vectors "$GLOVE"; row glove "GloVe embeddings (avg.)" unsupervised; }
if [ "$SCALE" = full ]; then
  transfer bert-average --model "$MODEL" --pooler avg
  row bert-average "Avg. BERT embeddings" unsupervised
  transfer bert-cls --model "$MODEL" --pooler cls_before_pooler
  row bert-cls "BERT-[CLS] embeddings" unsupervised
  transfer sbert --model sentence-transformers/bert-base-nli-mean-tokens
  row sbert SBERT-base supervised
  transfer sroberta --model sentence-transformers/roberta-base-nli-mean-tokens
  row sroberta SRoBERTa-base supervised
  for encoder in bert-base-uncased roberta-base roberta-large; do
    transfer "unsup-$encoder" --model "princeton-nlp/unsup-simcse-$encoder"
    transfer "sup-$encoder" --model "princeton-nlp/sup-simcse-$encoder"
  done
  for group in unsupervised supervised; do
    row "${group%ervised}-bert-base-uncased" SimCSE-BERT-base "$group"
    row "${group%ervised}-roberta-base" SimCSE-RoBERTa-base "$group"
    row "${group%ervised}-roberta-large" SimCSE-RoBERTa-large "$group"
  done
  if [ -n "${TRAIN:-}" ]; then
    triplets nli.csv
    for encoder in "BERT-base bert-base" "RoBERTa-base roberta-base" "RoBERTa-large roberta-large"; do
      with_mlm unsup "${encoder% *}" "${encoder#* }" --train-file "$WIKI"
      with_mlm sup "${encoder% *}" "${encoder#* }" --train-file "$OUT/nli.csv"
    done
  fi
else
  transfer average --model "$MODEL" --protocol fast --tasks "${TASKS:-MRPC,TREC}"
  row average "Avg. BERT embeddings" unsupervised
fi
results=()
for result in "$OUT"/*.json; do
  [[ $result == */comparison.json || $result == *.manifest.json ]] || results+=("$result")
done
compare "${results[@]}" --against simcse.E.1 -o "$OUT/comparison.json" --force
