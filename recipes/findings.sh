#!/usr/bin/env bash
# The findings of the papers, asked of a raw language model (raw-encoder.sh) at small scale: the recipes of the tables with
# RAW=1, and the page docs/findings.md from their results. RECIPES names some of them. A third of the STS-B dev pairs
# choose and score. findings-length.sh comes first and chooses STEPS. Results are looked at after 3, 5 and 10 seeds, so
# SEEDS=1,2,3 first, then more seeds in the recipes of the claims that are open (the seeds that are there are kept).
# Several commands at a time (2 on two cores, 20 on a GPU), and only what the claims need:
# OUT=runs/findings python recipes/side_by_side.py 2 recipes/findings.sh --only "$(python docs/make_findings.py needed)"
# A second encoder: LAYERS=4-6 OUT=runs/findings-3 PAGE="second runs/findings-3" recipes/findings.sh
set -euo pipefail
here=$(dirname "$0")
export SCALE=small RAW=1 OUT=${OUT:-runs/findings} SEEDS=${SEEDS:-1,2,3}
: "${SIMCSE_DATA:?set it to the folder with senteval/, wiki/ and nli/}"

[ -s "$OUT/raw-encoder-small/comparison.json" ] || STEPS=${RAW_STEPS:-1000} bash "$here/raw-encoder.sh"
[ -s "$OUT/sts-dev.csv" ] ||
  awk 'NR % 3 == 1' "$SIMCSE_DATA/senteval/downstream/STS/STSBenchmark/sts-dev.csv" > "$OUT/sts-dev.csv"
export DEV_FILE=$OUT/sts-dev.csv

SEEDS=1,2,3 STEPS=${LENGTH_STEPS:-400} bash "$here/findings-length.sh"
[ -n "${STEPS:-}" ] || STEPS=$(python "$here/../docs/make_findings.py" length "$OUT")
export STEPS

pairs() { # RECIPE: cosines of the STS-B test pairs of each training with seeds, for tests over pairs
  local run scores
  for run in "$OUT/$1-small"/*/; do
    run=${run%/}
    scores=$OUT/pairs/$1/$(basename "$run")
    if [ -s "$run/seeds.json" ] && [ "$run/seeds.json" -nt "$scores.json" ]; then
      mkdir -p "$OUT/pairs/$1"
      simcse eval sts --model "$run" --tasks STSBenchmark --data-dir "$SIMCSE_DATA" -o "$scores.json" \
        --save-scores "$scores.jsonl" --force
    fi
  done
}

geometry() { # LABEL=RUN...: alignment, uniformity and spectrum of [CLS] of the runs that are there
  local spaces=()
  for each in "$@"; do [ ! -d "${each#*=}" ] || spaces+=(--model "${each#*=}" --label "${each%%=*}"); done
  simcse analyze geometry "${spaces[@]}" --pooler cls_before_pooler --force-pooler --pair-file "$DEV_FILE" \
    -o "$OUT/geometry.json" --force
}

page() { # what there is so far
  # shellcheck disable=SC2086
  python "$here/../docs/make_findings.py" ${PAGE:-"$OUT"}
}

for recipe in ${RECIPES:-table3-dropout table7-hard-negatives table1-augmentations table6-pooling tableD1-temperature \
  table2-objectives tableB-postprocessing table4-datasets tableD2-mlm v1-table8-batch-size nc-table1-scan figures3-f1-g1}; do
  bash "$here/$recipe.sh"
  pairs "$recipe"
  geometry "raw=$OUT/raw-encoder-small/raw" "unsup=$OUT/table3-dropout-small/p-0.1" \
    "sup=$OUT/table7-hard-negatives-small/alpha-1.0"
  [ -n "${SIMCSE_NOTES:-}" ] || page
done
page
