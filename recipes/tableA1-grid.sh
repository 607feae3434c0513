#!/usr/bin/env bash
# SimCSE Table A.1: the search over batch size and learning rate (sweeps simcse-grid and simcse-grid-sup), best by dev
# score, for each of ENCODERS (full: the four of the paper).
source "$(dirname "$0")/common.sh"
UNSUP_GRID=simcse-grid SUP_GRID=simcse-grid-sup
ENCODERS=${ENCODERS:-bert-base bert-large roberta-base roberta-large}
if [ "$SCALE" = small ]; then
  ENCODERS=$MODEL UNSUP_GRID=$OUT/grid.yaml SUP_GRID=$OUT/grid-sup.yaml
  echo 'settings: {objective: simcse-unsup, pooler: cls}
grid: {batch_size: [32, 64], lr: [1.0e-5, 5.0e-5]}' > "$UNSUP_GRID"
  echo 'settings: {objective: simcse-sup, pooler: cls}
grid: {batch_size: [32, 64], lr: [1.0e-5, 5.0e-5]}' > "$SUP_GRID"
fi

triplets nli.csv
for MODEL in $ENCODERS; do
  name=${MODEL##*/}  # of a folder or of OWNER/NAME
  sweep "unsup-$name" "$UNSUP_GRID" --train-file "$WIKI" "${LENGTH[@]}"
  sweep "sup-$name" "$SUP_GRID" --train-file "$OUT/nli.csv" "${LENGTH[@]}"
  compare "unsup=$OUT/unsup-$name/sweep.json" --against simcse.3 --row "p=0.1"
  compare "sup=$OUT/sup-$name/sweep.json" --against simcse.7 --row "contradiction, alpha=1.0"
done
simcse compare --show simcse.A.1
