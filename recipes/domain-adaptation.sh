#!/usr/bin/env bash
# Adapting an encoder to a field (Gururangan et al. 2020): masked-LM training on its text, then unsupervised SimCSE on the
# same text, beside SimCSE alone. The field is that of image captions, whose sentences SICK-R compares:
# SIMCSE_DATA/flickr30k/captions.tsv, or FIELD, a file with one sentence a line. The masked-LM run has one seed, 42.
source "$(dirname "$0")/common.sh"
ADAPT=(--config mlm)
[ "$SCALE" = full ] || ADAPT=(--objective mlm --max-length 32 --batch-size 64 "${LENGTH[@]}")
if [ -z "${FIELD:-}" ]; then
  FIELD=$OUT/captions.txt
  cut -f 2 "$SIMCSE_DATA/flickr30k/captions.tsv" | tail -n +2 > "$FIELD"
fi

SEED_OPTION=--seed SEEDS=42 DEV_FILE=none train mlm "${ADAPT[@]}" --train-file "$FIELD" --dev-split 0.01
train simcse "${UNSUP[@]}" --train-file "$FIELD"
MODEL=$OUT/mlm train mlm-simcse "${UNSUP[@]}" --train-file "$FIELD"

sts before-sick "$MODEL" --tasks SICKRelatedness
compared=("before=$OUT/before-sick.json")
for name in mlm simcse mlm-simcse; do
  sts "$name-sick" "$OUT/$name" --tasks SICKRelatedness
  compared+=("$name=$OUT/$name" "$name=$OUT/$name-sick.json")
done
compare "${compared[@]}" -o "$OUT/comparison.json" --force
