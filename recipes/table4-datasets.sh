#!/usr/bin/env bash
# SimCSE Table 4 (also the dataset table of version 1): labelled pairs as positives, and their lexical overlap.
# Flickr30k captions: SIMCSE_DATA/flickr30k/captions.tsv. QQP, ParaNMT and ANLI are read from QQP_FILE, PARANMT_FILE
# and ANLI_FILE where these are set; they are not public in every form, so their rows are left out otherwise.
source "$(dirname "$0")/common.sh"
SAMPLE=(--sample 134000)
[ "$SCALE" = full ] || SAMPLE=(--sample 4000)

pairs() { # NAME FILE [OPTION...]: a file of pairs, all of them and a sample, each trained on
  local name=$1 file=$2
  [ -s "$OUT/$name.csv" ] || simcse prepare pairs "$file" -o "$OUT/$name.csv" "${@:3}"
  [ -s "$OUT/$name-sample.csv" ] || simcse prepare pairs "$file" -o "$OUT/$name-sample.csv" "${@:3}" "${SAMPLE[@]}"
  both "$name"
}

both() {
  train "$1-full" "${SUP[@]}" --train-file "$OUT/$1.csv"
  train "$1-sample" "${SUP[@]}" --train-file "$OUT/$1-sample.csv"
}

for positive in entailment neutral contradiction all; do
  triplets "$positive.csv" --positive "$positive" --hard-negative none
  triplets "$positive-sample.csv" --positive "$positive" --hard-negative none "${SAMPLE[@]}"
  both "$positive"
done
triplets hard-negative.csv
train hard-negative "${SUP[@]}" --train-file "$OUT/hard-negative.csv"
if [ -n "${ANLI_FILE:-}" ]; then
  triplets anli.csv --anli "$ANLI_FILE"
  train anli "${SUP[@]}" --train-file "$OUT/anli.csv"
fi
pairs flickr30k "$SIMCSE_DATA/flickr30k/captions.tsv" --flickr30k
[ -z "${QQP_FILE:-}" ] || pairs qqp "$QQP_FILE"
[ -z "${PARANMT_FILE:-}" ] || pairs paranmt "$PARANMT_FILE" --columns 1,2 # its score is not used

simcse analyze overlap "$OUT"/*.csv
for part in sample full; do
  for positive in "entailment (314k)" "neutral (314k)" "contradiction (314k)" "all (942k)"; do
    beside simcse.4 "${positive%% *}-$part" "$positive, $part"
  done
  beside simcse.4 "flickr30k-$part" "Flickr30k (318k), $part"
  [ ! -d "$OUT/qqp-$part" ] || beside simcse.4 "qqp-$part" "QQP (134k), $part"
  [ ! -d "$OUT/paranmt-$part" ] || beside simcse.4 "paranmt-$part" "ParaNMT (5m), $part"
done
beside simcse.4 hard-negative "entailment + hard neg., full"
[ ! -d "$OUT/anli" ] || beside simcse.4 anli "entailment + hard neg. + ANLI (52k), full"
compare "$OUT" --against simcse.4 -o "$OUT/comparison.json" --force
