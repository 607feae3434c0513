#!/usr/bin/env bash
# What came after SimCSE under one protocol (docs/family.md): the text, start, head, batch, rate and choice of the model are
# those of SimCSE for every row, and only the method's own options differ. MODEL is the start; RAW=1 starts from a raw language
# model. TEACHER is the frozen model of the rows that have one (default: unsup-simcse, at small scale minilm): it knows more
# than the start, so these rows stand beside `distill`, which has the same teacher and nothing else. GENERATOR is the masked
# language model of DiffCSE (default: distilbert-base, with RAW the start, else none and no such row).
source "$(dirname "$0")/common.sh"
[ "$SCALE" = full ] && TEACHER=${TEACHER:-unsup-simcse} || TEACHER=${TEACHER:-minilm}
[ "$SCALE" = full ] && GENERATOR=${GENERATOR:-distilbert-base} || GENERATOR=${GENERATOR:-${RAW:+$MODEL}}

method() {
  train "$1" "${UNSUP[@]}" --train-file "$WIKI" "${@:2}"
}

# Nothing beyond SimCSE, or one more pass of its own encoder.
method simcse
method esimcse --augment repeat:0.32 --set queue_size=160 --set momentum=0.995
method repeat --augment repeat:0.32
method simcse-plus-plus --set negatives=no-dropout --set dimension_weight=0.1
method mixcse --set mix=0.2
method mixcse-released --set mix=0.2 --set mix_masked=zero
method mirror --augment mask-span:5 --set negatives=all-views --temperature 0.04
method noise --set noise=1

# A template. The negations come from rules.
prompted() {
  train "$1" --objective "$1" --batch-size 64 --lr 3e-5 --max-length 34 "${LENGTH[@]}" "${@:2}"
}
prompted promptbert --train-file "$WIKI"
[ -s "$OUT/negated.csv" ] || simcse augment "$WIKI" --method negate -o "$OUT/negated.csv"
prompted sncse --train-file "$OUT/negated.csv"

# A teacher.
method dclr --set noise=1 --set false_negative_cosine=0.9 --teacher "$TEACHER"
method dclr-released --set noise=1 --set false_negative_cosine=0.9 --set as_released=true --teacher "$TEACHER"
train rankcse --objective rankcse --pooler cls --batch-size 64 --lr 3e-5 "${LENGTH[@]}" --train-file "$WIKI" --teacher "$TEACHER"
train rankcse-released --objective rankcse --set as_released=true --pooler cls --batch-size 64 --lr 3e-5 "${LENGTH[@]}" \
  --train-file "$WIKI" --teacher "$TEACHER"
train distill --objective distill --set match=similarities --pooler cls --batch-size 64 --lr 3e-5 "${LENGTH[@]}" \
  --train-file "$WIKI" --teacher "$TEACHER"

# A masked language model with the vocabulary of MODEL; MiniLM has no head for it.
if [ -n "$GENERATOR" ]; then
  train diffcse --objective diffcse --generator "$GENERATOR" --pooler cls --batch-size 64 --lr 3e-5 --epochs 1 "${LENGTH[@]}" \
    --train-file "$WIKI"
fi

# Every method on pairs that chose nothing, beside SimCSE; make_family.py writes the page from comparison.json.
[ "$SCALE" = full ] && TASKS=${TASKS:-} || TASKS=${TASKS:-STSBenchmark,STS16,SICKRelatedness}
entries=("simcse=$OUT/simcse.json")
for run in "$OUT"/*/; do
  name=$(basename "$run")
  sts "$name" "$OUT/$name" ${TASKS:+--tasks "$TASKS"} --save-scores "$OUT/$name.pairs.jsonl" --force
  [ "$name" = simcse ] || entries+=("$name=$OUT/$name.json")
done
compare "${entries[@]}" --baseline simcse --format json -o "$OUT/comparison.json" --force
