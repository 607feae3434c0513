#!/usr/bin/env bash
# The whole chain on the generated corpus and the bundled encoder: no network, no data, a few minutes.
set -euo pipefail

OUT=${1:-demo}
rm -rf "$OUT"
bold='' plain=''
[[ ! -t 2 || -n ${NO_COLOR:-} ]] || bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s$ simcse %s%s\n' "$bold" "$*" "$plain" >&2; simcse "$@"; }

say prepare demo -o "$OUT/data"
say augment "$OUT/data/sentences.txt" -o "$OUT/deleted.csv" --method delete --rate 0.1 --seed 1
say train --mode unsup --model minilm --train-file "$OUT/data/sentences.txt" \
  --dev-file "$OUT/data/downstream/STS/STSBenchmark/sts-dev.csv" --max-steps 40 --eval-every 20 -o "$OUT/unsup"
say train --mode sup --model minilm --train-file "$OUT/data/triplets.csv" \
  --dev-file "$OUT/data/downstream/STS/STSBenchmark/sts-dev.csv" --max-steps 40 --eval-every 20 -o "$OUT/sup"
say eval sts --model "$OUT/sup" --data-dir "$OUT/data" --tasks STSBenchmark -o "$OUT/sup-sts.json"
say encode "$OUT/data/sentences.txt" -o "$OUT/vectors.npy" --model "$OUT/sup"
say analyze geometry --model minilm --model "$OUT/sup" --data-dir "$OUT/data" --plot "$OUT/geometry.png"
say compare "$OUT/unsup" "$OUT/sup"
