#!/usr/bin/env bash
# SimCSE Figure 2 and Figure 1 of the reproducibility report: alignment and uniformity every ten steps of the
# unsupervised run, against no dropout, one mask for both views, and deleting one word.
# small takes short sentences, batches of 16 and every eighth dev pair: minutes on a CPU.
source "$(dirname "$0")/common.sh"

if [ "$SCALE" = small ]; then
  awk 'NR % 8 == 1' "$DEV_FILE" > "$OUT/sts-dev.csv"
  DEV_FILE=$OUT/sts-dev.csv
  STEPS=${STEPS:-150}
  UNSUP=(--mode unsup --pooler cls --batch-size 16 --max-length 16 --max-steps "$STEPS" --save-every "$STEPS" --lr 5e-5
    --precision "${PRECISION:-auto}")
fi
UNSUP+=(--train-file "$WIKI" --eval-every 10)

train dropout "${UNSUP[@]}"
train no-dropout "${UNSUP[@]}" --dropout-mode none
train fixed-mask "${UNSUP[@]}" --dropout-mode fixed
train delete-one-word "${UNSUP[@]}" --augment delete-one

simcse analyze trace "$OUT/dropout" "$OUT/no-dropout" "$OUT/fixed-mask" "$OUT/delete-one-word" \
  --plot "$OUT/figure2.png" --html "$OUT/figure2.html" --force
beside simcse.3 dropout "p=0.1"
beside simcse.3 no-dropout "p=0.0"
beside simcse.3 fixed-mask "Fixed 0.1"
beside simcse.1 delete-one-word "Delete one word"
