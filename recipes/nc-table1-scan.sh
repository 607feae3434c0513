#!/usr/bin/env bash
# Table 1 and Figure 1 of the non-contrastive paper: Barlow Twins and VICReg over augmentations of both sides, each cell
# a sweep of which the best, the upper quartile and the median are shown. The paper's ranges are not public: these are
# ours (sweeps barlow-twins-redundancy, learning rate against redundancy weight, and vicreg-weights, where Optuna stands in
# for SMAC). small takes two settings a cell, a narrow projector and small batches. MODEL=roberta-base gives its other rows.
source "$(dirname "$0")/common.sh"
BARLOW=barlow-twins-redundancy VICREG=vicreg-weights ENCODER=BERT-base
[[ $MODEL != roberta-base ]] || ENCODER=RoBERTa-base
if [ "$SCALE" = full ]; then
  LENGTH=(--epochs 2 --eval-every 60)
else
  LENGTH+=(--batch-size 32 --set projector_dim=256)
  BARLOW=$OUT/barlow-twins.yaml VICREG=$OUT/vicreg.yaml
  echo 'settings: {objective: barlow-twins, pooler: cls}
grid: {lr: [3.0e-5], options.redundancy_weight: [0.0051, 0.016]}' > "$BARLOW"
  echo 'settings: {objective: vicreg, pooler: cls}
grid: {options.covariance_weight: [1.0, 10.0]}' > "$VICREG"
fi

cells=()
scan() { # COLUMN OPTION...: one cell for both objectives
  sweep "barlow-twins-${1// /-}" "$BARLOW" --train-file "$WIKI" "${LENGTH[@]}" "${@:2}"
  sweep "vicreg-${1// /-}" "$VICREG" --train-file "$WIKI" "${LENGTH[@]}" "${@:2}"
  cells+=("$1")
}

for p in 0.05 0.1 0.2; do scan "dropout $p" --dropout "$p"; done
for share in 0.05 0.1 0.2 0.3 0.5; do scan "shuffle $share" --augment "shuffle:$share" --set augment_both=true; done
if has_wordnet; then
  for alpha in 0.1 0.2; do scan "EDA $alpha" --augment "eda:$alpha" --set augment_both=true; done
fi

for objective in "barlow-twins Barlow Twins" "vicreg VICReg"; do
  for cell in "${cells[@]}"; do
    rows=()
    for line in max q75 q50; do rows+=(--row "${objective#* }, $ENCODER, $line, $cell"); done
    compare "$cell=$OUT/${objective%% *}-${cell// /-}/sweep.json" --against nc.1 "${rows[@]}"
  done
done
