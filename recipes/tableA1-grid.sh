#!/usr/bin/env bash
# SimCSE Table A.1: the search over batch size and learning rate (sweep simcse-grid), best by dev score.
source "$(dirname "$0")/common.sh"

if [ "$SCALE" = full ]; then
  sweep unsup simcse-grid --train-file "$WIKI"
else
  cat > "$OUT/grid.yaml" <<'YAML'
settings: {objective: simcse-unsup, pooler: cls}
grid: {batch_size: [32, 64], lr: [1.0e-5, 5.0e-5]}
YAML
  sweep unsup "$OUT/grid.yaml" --train-file "$WIKI" "${LENGTH[@]}"
fi
simcse compare --show simcse.A.1
simcse compare "$OUT/unsup" --against simcse.3 --row "p=0.1"
