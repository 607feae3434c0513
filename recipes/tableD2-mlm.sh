#!/usr/bin/env bash
# SimCSE Table D.2 (table 9 of version 1): weight of the auxiliary masked-language-model term.
# "Avg. transfer" is the mean dev accuracy of the transfer tasks in the fast protocol.
source "$(dirname "$0")/common.sh"

triplets nli.csv
for weight in 0 0.01 0.1 1; do
  train "mlm-$weight" "${SUP[@]}" --train-file "$OUT/nli.csv" --mlm-weight "$weight"
  if [ "$SCALE" = full ]; then
    [ -s "$OUT/mlm-$weight/transfer.json" ] || simcse eval transfer --model "$OUT/mlm-$weight" \
      --data-dir "$SIMCSE_DATA" --protocol fast -o "$OUT/mlm-$weight/transfer.json"
  fi
done

beside simcse.D.2 mlm-0 "w/o MLM"
beside v1.9 mlm-0 "w/o MLM"
for weight in 0.01 0.1 1; do
  beside simcse.D.2 "mlm-$weight" "lambda=$weight"
  beside v1.9 "mlm-$weight" "lambda=$weight"
done
compare "$OUT" --against simcse.D.2 -o "$OUT/comparison.json" --force
