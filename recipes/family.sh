#!/usr/bin/env bash
# What came after SimCSE under one protocol (docs/family.md): the text, start, head, batch, rate and choice of the model are
# those of SimCSE for every row, and only the method's own options differ. MODEL is the start; RAW=1 starts from a raw language
# model. TEACHER is the frozen model of the rows that have one (default: unsup-simcse, at small scale minilm): it knows more
# than the start, so these rows stand beside `distill`, which has the same teacher and nothing else. GENERATOR is the masked
# language model of DiffCSE (default: distilbert-base, with RAW the start, else none and no such row).
source "$(dirname "$0")/common.sh"
[ "$SCALE" = full ] && TEACHER=${TEACHER:-unsup-simcse} || TEACHER=${TEACHER:-minilm}
[ "$SCALE" = full ] && GENERATOR=${GENERATOR:-distilbert-base} || GENERATOR=${GENERATOR:-${RAW:+$MODEL}}

[ "$SCALE" = full ] && TASKS=${TASKS:-} || TASKS=${TASKS:-STSBenchmark,STS16}
[ "$SCALE" = full ] && TRANSFER=() || TRANSFER=(--protocol fast --tasks CR,TREC)
here=$(dirname "$0")
entries=()
spaces=()
timed=()

# time_steps NAME OPTION...: the seconds of a step in $OUT/NAME.time, from three dry runs; they count on a quiet machine only
time_steps() {
  [ ! -s "$OUT/$1.time" ] || return 0
  for _ in 1 2 3; do
    simcse train --model "$MODEL" --dev-file none --seed 1 "${@:2}" --dry-run | grep "^  step  "
  done > "$OUT/$1.time.part"
  mv "$OUT/$1.time.part" "$OUT/$1.time"
}

# row NAME OPTION...: a method, scored on pairs that chose nothing
row() {
  train "$@"
  sts "$1" "$OUT/$1" ${TASKS:+--tasks "$TASKS"} --save-scores "$OUT/$1.pairs.jsonl" --force
  [ -s "$OUT/negations.csv" ] || python "$here/../docs/make_family.py" negations "$SENTEVAL" "$OUT/negations.csv"
  sts "$1-negations" "$OUT/$1" --pair-file "$OUT/negations.csv" --save-scores "$OUT/$1-negations.pairs.jsonl" --force
  [ -s "$OUT/$1-transfer.json" ] ||
    simcse eval transfer --model "$OUT/$1" --data-dir "$SIMCSE_DATA" "${TRANSFER[@]}" -o "$OUT/$1-transfer.json"
  timed+=("$(printf '%q ' "$@")")
  entries+=("$1=$OUT/$1.json")
  spaces+=(--model "$OUT/$1" --label "$1")
}

method() {
  row "$1" "${UNSUP[@]}" --train-file "$WIKI" "${@:2}"
}

# Nothing beyond SimCSE, or one more pass of its own encoder.
method simcse
method esimcse --augment repeat:0.32 --set queue_size=160 --set momentum=0.995
method simcse-plus-plus --set negatives=no-dropout --set dimension_weight=0.1
method mixcse --set mix=0.2
method mirror --augment mask-span:5 --set negatives=all-views --temperature 0.04

# A template. The negations come from rules.
prompted() {
  row "$1" --batch-size 64 --lr 3e-5 --max-length 34 "${LENGTH[@]}" "${@:2}"
}
[ -s "$OUT/negated.csv" ] || simcse augment "$WIKI" --method negate -o "$OUT/negated.csv"
prompted promptbert --objective promptbert --train-file "$WIKI"
prompted sncse --objective sncse --train-file "$OUT/negated.csv"

# A teacher, encoded once for all rows and seeds.
[ -s "$OUT/teacher.npy" ] || simcse encode "$WIKI" --model "$TEACHER" -o "$OUT/teacher.npy"
TEACHER=$OUT/teacher.npy
taught() {
  row "$1" --pooler cls --batch-size 64 --lr 3e-5 "${LENGTH[@]}" --train-file "$WIKI" --teacher "$TEACHER" "${@:2}"
}
method dclr --set noise=1 --set false_negative_cosine=0.9 --teacher "$TEACHER"
taught rankcse --objective rankcse
taught distill --objective distill --set match=similarities

# A masked language model with the vocabulary of MODEL; MiniLM has no head for it.
if [ -n "$GENERATOR" ]; then
  row diffcse --objective diffcse --generator "$GENERATOR" --pooler cls --batch-size 64 --lr 3e-5 --epochs 1 "${LENGTH[@]}" \
    --train-file "$WIKI"
fi

# Parts of a method alone, and methods as their code computes them: what the claims of docs/family.yaml compare.
method repeat --augment repeat:0.32
prompted promptbert-plain --objective promptbert --train-file "$WIKI" --set template_bias=off
prompted hard-negations --objective simcse-sup --head train-only --train-file "$OUT/negated.csv" --pooler mask \
  --template 'This sentence : " {.} " means {mask} .'
taught rankcse-released --objective rankcse --set as_released=true
method no-dropout --set negatives=no-dropout
method noise --set noise=1
method mixcse-released --set mix=0.2 --set mix_masked=zero
method dclr-released --set noise=1 --set false_negative_cosine=0.9 --set as_released=true --teacher "$TEACHER"

# The start itself, and spaces; `python docs/make_family.py $OUT` writes the page.
start() {
  sts "start-$1" "$MODEL" ${TASKS:+--tasks "$TASKS"} --save-scores "$OUT/start-$1.pairs.jsonl" --force --force-pooler "${@:2}"
}
start cls --pooler cls_before_pooler
start avg --pooler avg
start mask --pooler mask --template 'This sentence : "{.}" means {mask}.'
[ -s "$OUT/geometry.json" ] || simcse analyze geometry "${spaces[@]}" --pair-file "$DEV_FILE" -o "$OUT/geometry.json"
compare "${entries[@]}" --baseline simcse -o "$OUT/comparison.json" --force
# Beside other commands (side_by_side.py) a step takes longer.
[ -n "${SIMCSE_NOTES:-}" ] || for each in "${timed[@]}"; do eval "time_steps $each"; done
