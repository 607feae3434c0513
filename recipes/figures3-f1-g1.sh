#!/usr/bin/env bash
# SimCSE Figures 3, F.1 and G.1: alignment and uniformity of several systems, singular values, cosine densities. An encoder
# as it is, whitened and with flow (fitted on NLI), SBERT, next 3 sentences, and the two SimCSE models. full takes the
# released checkpoints and trains next 3 sentences on DOCUMENTS (the paper's text is not known); small trains all four.
# Points are coloured by the average over STS tasks, at small scale by STS-B. SPLIT=test draws the test pairs alone, as
# small does by default.
source "$(dirname "$0")/common.sh"
DOCUMENTS=${DOCUMENTS:-$SIMCSE_DATA/brown/brown.txt}
SBERT=sentence-transformers/bert-base-nli-mean-tokens
UNSUP_MODEL=princeton-nlp/unsup-simcse-bert-base-uncased SUP_MODEL=princeton-nlp/sup-simcse-bert-base-uncased
FIT=(--fit nli)

first() { # NAME: the run, or that of its first seed, since a system is one point
  local run=$OUT/$1/seed-${SEEDS%%,*}
  if [ -d "$run" ]; then echo "$run"; else echo "$OUT/$1"; fi
}

if [ "$SCALE" = small ]; then
  SPLIT=${SPLIT:-test}
  FIT+=(--fit-sample 2000)
  train sbert --objective sbert --train-file "${NLI[0]}" --batch-size 16 "${LENGTH[@]}"
  triplets nli.csv
  train unsup "${UNSUP[@]}" --train-file "$WIKI"
  train sup "${SUP[@]}" --train-file "$OUT/nli.csv"
  SBERT=$(first sbert) UNSUP_MODEL=$(first unsup) SUP_MODEL=$(first sup)
fi
train next-3 --objective next-sentence --set window=3 --train-file "$DOCUMENTS" --pooler cls --batch-size 64 --lr 3e-5 \
  "${LENGTH[@]}"

systems=() scores=()
system() { # NAME LABEL MODEL MAP [OPTION...]: a system of the figures, and its STS scores for their colour
  systems+=(--model "$3" --postprocess "$4" --label "$2")
  if [ "$SCALE" = full ]; then
    sts "$1" "$3" "${@:5}"
    scores+=(--scores "$OUT/$1.json")
  fi
}
NAME=$(basename "$MODEL")
system plain "Avg. $NAME" "$MODEL" none
system flow "$NAME-flow" "$MODEL" flow --postprocess flow "${FIT[@]}"
system whitening "$NAME-whitening" "$MODEL" whitening --postprocess whitening "${FIT[@]}"
system sbert SBERT "$SBERT" none
system sbert-flow SBERT-flow "$SBERT" flow --postprocess flow "${FIT[@]}"
system sbert-whitening SBERT-whitening "$SBERT" whitening --postprocess whitening "${FIT[@]}"
system next-3 "Next 3 sentences" "$(first next-3)" none
system unsup "Unsup. SimCSE" "$UNSUP_MODEL" none
system sup "Sup. SimCSE" "$SUP_MODEL" none

spaces=("${systems[@]}" "${FIT[@]}" --data-dir "$SIMCSE_DATA" --split "${SPLIT:-all}")
simcse analyze geometry "${spaces[@]}" "${scores[@]}" --plot "$OUT/figure3.png" -o "$OUT/geometry.json" --force
simcse analyze spectrum "${spaces[@]}" --plot "$OUT/figureF1.png" --force
simcse analyze density "${spaces[@]}" --plot "$OUT/figureG1.png" --force
compare "$OUT/geometry.json" --against nc.6 --measures alignment,uniformity
