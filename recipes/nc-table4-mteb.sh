#!/usr/bin/env bash
# MTEB tables of the non-contrastive paper (its per-dataset table 4 and the category means). Needs the extra mteb, and
# the Hub for the data. The weights of the paper are not public: SYSTEM names a run of nc-table1-scan.sh or any model.
source "$(dirname "$0")/common.sh"
SYSTEM=${SYSTEM:-$MODEL}

if [ "$SCALE" = full ]; then
  simcse eval mteb --model "$SYSTEM" -o "$OUT/system.json" --force
  simcse eval mteb --model princeton-nlp/unsup-simcse-roberta-base -o "$OUT/simcse.json" --force
  compare "$OUT/simcse.json" --against nc.4 --row SimCSE
  compare "$OUT/simcse.json" "$OUT/system.json" --against nc.6
else
  simcse eval mteb --model "$SYSTEM" --tasks "${TASKS:-STS12}" --data-dir "$SIMCSE_DATA" -o "$OUT/system.json" --force
  compare "$OUT/system.json" --against nc.4 --row SimCSE
fi
