#!/usr/bin/env bash
# Figure 2 of Gao et al. 2021 and Figure 1 of the reproducibility report: alignment and uniformity every ten steps of
# the unsupervised run, against no dropout, one fixed mask and deleting a word.
#   SCALE=full   BERT-base on the 10^6 sentences of the paper (default; a GPU)
#   SCALE=small  150 short steps of the packaged MiniLM on any sentences, every eighth dev pair (minutes on a CPU)
# TRAIN_FILE is the file of sentences, DEV_FILE the STS-B file sts-dev.csv, OUT the folder for runs and figures.
set -euo pipefail

: "${TRAIN_FILE:?a text file with one sentence a line}" "${DEV_FILE:?sts-dev.csv of STS-B}"
OUT=${OUT:-runs/figure2}
mkdir -p "$OUT"

if [ "${SCALE:-full}" = small ]; then
  awk 'NR % 8 == 1' "$DEV_FILE" > "$OUT/sts-dev.csv"
  SETTINGS=(--model minilm --batch-size 16 --max-length 16 --max-steps 150 --lr 5e-5 --save-every 150)
else
  cp "$DEV_FILE" "$OUT/sts-dev.csv"
  SETTINGS=(--model bert-base --batch-size 64 --max-length 32 --epochs 1 --lr 3e-5)
fi

run() {
  simcse train --mode unsup --pooler cls --train-file "$TRAIN_FILE" --dev-file "$OUT/sts-dev.csv" \
    --eval-every 10 --seed 42 "${SETTINGS[@]}" -o "$OUT/$1" "${@:2}" --force
}

run dropout
run no-dropout --dropout-mode none
run fixed-mask --dropout-mode fixed
run delete-one-word --augment delete-one

simcse analyze trace "$OUT/dropout" "$OUT/no-dropout" "$OUT/fixed-mask" "$OUT/delete-one-word" \
  --plot "$OUT/figure2.png" --html "$OUT/figure2.html" --force
