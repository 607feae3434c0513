#!/usr/bin/env bash
# A raw language model for the small recipes (RAW=1): MiniLM's weights, trained on masked words alone, forget the
# sentence training. It is not BERT: 22 million parameters, and what it knows is MiniLM's and the text below: Wikipedia,
# Brown, every fifth caption of Flickr30k and SNLI. Half an hour on one core; $OUT/raw.sha256 has the digest of its weights.
SCALE=small RAW=
source "$(dirname "$0")/common.sh"

cut -f 2 "$SIMCSE_DATA/flickr30k/captions.tsv" | awk 'NR % 5 == 2' > "$OUT/captions.txt"
grep -ohE '"sentence[12]": "[^"\\]*"' "${NLI[@]}" | cut -d '"' -f 4 | sort -u > "$OUT/nli.txt"
SEED_OPTION=--seed SEEDS=42 DEV_FILE=none train raw --objective mlm --train-file "$WIKI" --train-file "$SIMCSE_DATA/brown/brown.txt" \
  --train-file "$OUT/captions.txt" --train-file "$OUT/nli.txt" --dev-split 0.01 --lr 3e-4 \
  --batch-size 96 --max-length 32 --max-steps "${STEPS:-400}" --eval-every 50 --patience 3 --precision "${PRECISION:-auto}"
[ -s "$OUT/raw.sha256" ] || (cd "$OUT" && sha256sum raw/model/model.safetensors > raw.sha256)

for pooler in cls_before_pooler avg; do
  sts "minilm-${pooler%%_*}" "$MODEL" --pooler "$pooler" --force-pooler
  sts "raw-${pooler%%_*}" "$OUT/raw" --pooler "$pooler" --force-pooler
done
compare "MiniLM=$OUT/minilm-avg.json" "MiniLM, [CLS]=$OUT/minilm-cls.json" "raw=$OUT/raw-avg.json" \
  "raw, [CLS]=$OUT/raw-cls.json" -o "$OUT/comparison.json" --force
