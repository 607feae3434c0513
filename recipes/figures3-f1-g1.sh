#!/usr/bin/env bash
# SimCSE Figures 3, F.1 and G.1: alignment and uniformity of several systems, singular values, cosine densities.
# full draws the released checkpoints; small a short run beside the packaged encoder.
source "$(dirname "$0")/common.sh"

models=(--model "$MODEL")
if [ "$SCALE" = full ]; then
  models+=(--model princeton-nlp/unsup-simcse-bert-base-uncased --model princeton-nlp/sup-simcse-bert-base-uncased)
else
  train unsup "${UNSUP[@]}" --train-file "$WIKI"
  models+=(--model "$OUT/unsup")
fi
simcse analyze geometry "${models[@]}" --data-dir "$SIMCSE_DATA" --plot "$OUT/figure3.png" \
  -o "$OUT/geometry.json" --force
simcse analyze spectrum "${models[@]}" --data-dir "$SIMCSE_DATA" --plot "$OUT/figureF1.png" --force
simcse analyze density "${models[@]}" --data-dir "$SIMCSE_DATA" --plot "$OUT/figureG1.png" --force
simcse compare "$OUT/geometry.json" --against nc.6 --measures alignment,uniformity
