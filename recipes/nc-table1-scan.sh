#!/usr/bin/env bash
# Table 1 of the non-contrastive paper: Barlow Twins and VICReg over augmentations. The paper reports the best, the
# upper quartile and the median of a search whose ranges are not public; this runs one setting a cell (the defaults).
source "$(dirname "$0")/common.sh"
[ "$SCALE" = small ] || LENGTH=(--epochs 2 --eval-every 60)

scan() { # NAME OPTION...: one cell for both objectives
  for objective in barlow-twins vicreg; do
    train "$objective-$1" --objective "$objective" --pooler cls --train-file "$WIKI" "${LENGTH[@]}" "${@:2}"
  done
}

for p in 0.05 0.1 0.2; do scan "dropout-$p" --dropout "$p"; done
for alpha in 0.1 0.2; do scan "eda-$alpha" --augment "eda:$alpha"; done
for share in 0.05 0.1 0.2 0.3 0.5; do scan "shuffle-$share" --augment "shuffle:$share"; done

for objective in "barlow-twins Barlow Twins" "vicreg VICReg"; do
  name=${objective%% *} title=${objective#* }
  for p in 0.05 0.1 0.2; do beside nc.1 "$name-dropout-$p" "$title, BERT-base, max, dropout $p"; done
  for alpha in 0.1 0.2; do beside nc.1 "$name-eda-$alpha" "$title, BERT-base, max, EDA $alpha"; done
  for share in 0.05 0.1 0.2 0.3 0.5; do
    beside nc.1 "$name-shuffle-$share" "$title, BERT-base, max, shuffle $share"
  done
done
simcse compare "$OUT" --against nc.1 --measures "STS-B dev" -o "$OUT/comparison.json" --force
