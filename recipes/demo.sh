#!/usr/bin/env bash
# The whole chain on the generated corpus and the bundled encoder: no network, no data, about two minutes. What is complete
# in the folder is kept, and the rest continues. Batches are so small that training needs no compiled kernels.
set -euo pipefail

OUT=${1:-demo}
DEV_FILE=$OUT/data/downstream/STS/STSBenchmark/sts-dev.csv
bold='' plain=''
[[ ! -t 2 || -n ${NO_COLOR:-} ]] || bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s$ simcse %s%s\n' "$bold" "$*" "$plain" >&2; simcse "$@"; }

# unless FILE COMMAND...: the command, unless the file that it writes last is there
unless() { if [ -e "$1" ]; then echo "$1 is there already" >&2; else say "${@:2}"; fi; }

# train NAME OPTION...: a run in $OUT/NAME; an existing run resumes, or is kept if complete
train() {
  local resume=()
  [ ! -d "$OUT/$1" ] || resume=(--resume)
  say train --model minilm --dev-file "$DEV_FILE" --max-steps 10 --eval-every 10 "${@:2}" -o "$OUT/$1" "${resume[@]}"
}

unless "$OUT/data/manifest.json" prepare demo -o "$OUT/data" --sentences 500 --triplets 300 --pairs 600 --documents 50
unless "$OUT/deleted.csv" \
  augment "$OUT/data/sentences.txt" -o "$OUT/deleted.csv" --method delete --rate 0.1 --seed 1
train unsup --mode unsup --train-file "$OUT/data/sentences.txt" --batch-size 16
train sup --mode sup --train-file "$OUT/data/triplets.csv" --batch-size 16
unless "$OUT/sup-sts.json" \
  eval sts --model "$OUT/sup" --data-dir "$OUT/data" --tasks STSBenchmark -o "$OUT/sup-sts.json"
unless "$OUT/vectors.npy" encode "$OUT/data/sentences.txt" -o "$OUT/vectors.npy" --model "$OUT/sup" --resume
unless "$OUT/geometry.png" \
  analyze geometry --model minilm --model "$OUT/sup" --data-dir "$OUT/data" --split test --plot "$OUT/geometry.png"
say compare "$OUT/unsup" "$OUT/sup"
printf '\n%s\n' "the models are in $OUT/unsup and $OUT/sup; search with one of them:" \
  "  simcse analyze search $OUT/data/sentences.txt --model $OUT/sup --embeddings $OUT/vectors.npy --interactive" >&2
