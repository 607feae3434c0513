#!/usr/bin/env bash
# SimCSE Table 8 (table 10 of version 1): nearest Flickr30k captions, two systems side by side; the table has no score,
# so recall of the captions of the same image is added. Needs SIMCSE_DATA/flickr30k/captions.tsv.
source "$(dirname "$0")/common.sh"
CAPTIONS=$SIMCSE_DATA/flickr30k/captions.tsv

if [ "$SCALE" = full ]; then
  FIRST=sentence-transformers/bert-base-nli-mean-tokens SECOND=princeton-nlp/sup-simcse-bert-base-uncased
else
  triplets nli.csv
  train sup "${SUP[@]}" --train-file "$OUT/nli.csv"
  FIRST=$MODEL SECOND=$OUT/sup
  head -n "${CAPTIONS_KEPT:-5001}" "$CAPTIONS" > "$OUT/captions.tsv"
  CAPTIONS=$OUT/captions.tsv
fi
simcse analyze retrieval --model "$FIRST" --model "$SECOND" --corpus "$CAPTIONS" --column caption \
  --query "A man riding a small boat in a harbor." --query "A dog runs on the green grass near a wooden fence." \
  --top-k 3 --output "$OUT/nearest.json" --force
simcse analyze retrieval --model "$FIRST" --model "$SECOND" --corpus "$CAPTIONS" --column caption --sample 500 \
  --qrels "$CAPTIONS" --output "$OUT/recall.json" --force
simcse compare --show simcse.8
