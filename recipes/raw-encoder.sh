#!/usr/bin/env bash
# A raw language model for the small recipes (RAW=1): MiniLM's weights with the upper two layers drawn anew, trained on
# masked words alone, so that nothing is left of the sentence training. It is not BERT: 22 million parameters, and what it
# knows is MiniLM's and the text below: Wikipedia, Brown, Flickr30k and SNLI in blocks of 126 sub-words, without texts of
# the STS sets. An hour on two cores; $OUT/raw.sha256 has the digest of its weights.
# LAYERS=4-6 takes MiniLM's upper three layers alone, and LAYERS=1-3 the lower ones, whose [CLS] says nothing of the
# sentence: encoders of another shape, without fresh layers. STEPS and BATCH are 1000 and 32; EVALUATE= leaves the scores of
# the start and the result out.
SCALE=small RAW= ALSO=${BATCH:+ BATCH=$BATCH}
source "$(dirname "$0")/common.sh"
LAYERS=${LAYERS:-1-6}
[ "$LAYERS" = 1-6 ] && FRESH=${FRESH:-2} || FRESH=${FRESH:-0}
EVALUATE=${EVALUATE-yes}
here=$(dirname "$0")

[ -s "$OUT/start/model.safetensors" ] ||
  python "$here/raw_encoder.py" start "$MODEL" "$OUT/start" --layers "$LAYERS" --fresh "$FRESH"
[ -s "$OUT/text.txt" ] || python "$here/raw_encoder.py" text "$MODEL" "$OUT/text.txt" 2> "$OUT/text.log"
minilm=$MODEL MODEL=$OUT/start
STEPS=${STEPS:-1000}
SEED_OPTION=--seed SEEDS=42 DEV_FILE=none train raw --objective mlm --train-file "$OUT/text.txt" --dev-split 0.01 \
  --lr 5e-4 --warmup 0.06 --batch-size "${BATCH:-32}" --max-length 128 --max-steps "$STEPS" \
  --eval-every $((STEPS < 10 ? 1 : STEPS / 10)) --save-every $((STEPS < 20 ? 1 : STEPS / 20)) \
  --precision "${PRECISION:-auto}"
[ -s "$OUT/raw.sha256" ] || (cd "$OUT" && sha256sum raw/model/model.safetensors > raw.sha256)

[ -n "$EVALUATE" ] || exit 0
for pooler in cls_before_pooler avg; do
  sts "minilm-${pooler%%_*}" "$minilm" --pooler "$pooler" --force-pooler
  sts "raw-${pooler%%_*}" "$OUT/raw" --pooler "$pooler" --force-pooler
done
[ -s "$OUT/geometry.json" ] || simcse analyze geometry --model "$minilm" --label minilm --model "$OUT/raw" --label raw \
  --pooler cls_before_pooler --force-pooler --pair-file "$DEV_FILE" -o "$OUT/geometry.json"
compare "MiniLM=$OUT/minilm-avg.json" "MiniLM, [CLS]=$OUT/minilm-cls.json" "raw=$OUT/raw-avg.json" \
  "raw, [CLS]=$OUT/raw-cls.json" -o "$OUT/comparison.json" --force
