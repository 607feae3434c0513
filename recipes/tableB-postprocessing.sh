#!/usr/bin/env bash
# SimCSE Tables B.1 (settings), B.2, B.3 and C.1: flow and whitening, fitted on NLI or on the test sentences, under two
# aggregations. full scores BERT-base and the SBERT checkpoint trained on NLI; small the packaged encoder alone, with RAW=1
# the raw one, and the packaged one in the place of SBERT.
source "$(dirname "$0")/common.sh"
SBERT=sentence-transformers/bert-base-nli-mean-tokens
[ "$SCALE" = full ] || SBERT=${RAW:+minilm}
TASKS=(--tasks "${TASKS:-STS12,STS13,STS14,STS15,STS16,STSBenchmark,SICKRelatedness}")
FIT=()
[ "$SCALE" = full ] || FIT=(--fit-sample 5000)

sts() { # NAME MODEL OPTION...
  [ -s "$OUT/$1.json" ] || simcse eval sts --model "$2" --data-dir "$SIMCSE_DATA" "${TASKS[@]}" \
    -o "$OUT/$1.json" --save-scores "$OUT/$1.jsonl" --force "${@:3}"
}

system() { # LABEL MODEL: as it is, and with flow and whitening, both fits, next to both tables
  sts "$1" "$2" --pooler avg_first_last --force-pooler
  compare "$OUT/$1.json" --against simcse.B.3 --row "$1-base (first-last avg.)" --aggregation wmean
  for map in flow whitening; do
    for fit in nli target; do
      sts "$1-$map-$fit" "$2" --pooler avg_first_last --force-pooler --postprocess "$map" --fit "$fit" "${FIT[@]}"
      label=NLI
      [ "$fit" = nli ] || label=target
      compare "$OUT/$1-$map-$fit.json" --against simcse.C.1 --row "$1-$map ($label)"
      compare "$OUT/$1-$map-$fit.json" --against simcse.B.3 --row "$1-base + $map ($label)" --aggregation wmean
    done
  done
}

system BERT "$MODEL"
if [ -n "$SBERT" ]; then
  system SBERT "$SBERT"
  sts SBERT-avg "$SBERT" --pooler avg
  compare "$OUT/SBERT-avg.json" --against simcse.B.2 --row "SBERT (all)"
  compare "$OUT/SBERT-avg.json" --against simcse.B.2 --row "SBERT (wmean)" --aggregation wmean
fi
compare "$OUT"/*.json --against simcse.C.1
simcse compare --show simcse.B.1
