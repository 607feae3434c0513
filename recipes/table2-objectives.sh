#!/usr/bin/env bash
# SimCSE Table 2: what the positive is, with one encoder or two; with the supervised rows of the text (two encoders, and
# the unsupervised loss added, weight UNSUP_WEIGHT: the paper tried it and gives no number). The neighbour rows need text in document
# order: the Brown corpus (SIMCSE_DATA/brown/brown.txt) or DOCUMENTS; what the paper used is not known.
source "$(dirname "$0")/common.sh"
DOCUMENTS=${DOCUMENTS:-$SIMCSE_DATA/brown/brown.txt}

[ -s "$OUT/delete-one.csv" ] || simcse augment "$WIKI" -o "$OUT/delete-one.csv" --method delete-one --seed 42
for encoders in one two; do
  dual=()
  [ "$encoders" = one ] || dual=(--dual-encoder)
  for window in 1 3; do
    train "next-$window-$encoders" --objective next-sentence --set window="$window" --train-file "$DOCUMENTS" \
      --pooler cls --batch-size 64 --lr 3e-5 "${LENGTH[@]}" "${dual[@]}"
  done
  train "delete-one-$encoders" "${UNSUP[@]}" --train-file "$OUT/delete-one.csv" "${dual[@]}"
  train "unsup-$encoders" "${UNSUP[@]}" --train-file "$WIKI" "${dual[@]}"
done

triplets nli.csv
train sup-one "${SUP[@]}" --train-file "$OUT/nli.csv"
train sup-two "${SUP[@]}" --train-file "$OUT/nli.csv" --dual-encoder
train sup-unsup "${SUP[@]}" --train-file "$OUT/nli.csv" --set "unsup_weight=${UNSUP_WEIGHT:-1}"

for encoders in one two; do
  column="one encoder"
  [ "$encoders" = one ] || column="two encoders"
  beside simcse.2 "next-1-$encoders" "Next sentence, $column"
  beside simcse.2 "next-3-$encoders" "Next 3 sentences, $column"
  beside simcse.2 "delete-one-$encoders" "Delete one word, $column"
  beside simcse.2 "unsup-$encoders" "Unsupervised SimCSE, $column"
done
beside simcse.inline sup-one "supervised SimCSE, one encoder, STS-B dev"
beside simcse.inline sup-two "supervised SimCSE, dual encoder, STS-B dev"
beside simcse.inline sup-unsup "supervised SimCSE, one encoder, STS-B dev"
compare "$OUT" --against simcse.2 -o "$OUT/comparison.json" --force
