# What the recipes share; sourced by them, not run.
#
#   SIMCSE_DATA  folder with senteval/, wiki/ and nli/ (some recipes name more), as for all commands; required
#   SCALE        full: encoder, data and settings of the paper, for a GPU (default)
#                small: the packaged MiniLM and short runs, on a CPU
#   OUT          folder for runs and results (default: runs); complete runs in it are kept, others resume
#   SEEDS        seeds of every run, such as 1,2,3 (default: 42); several give mean and deviation
#   MODEL, STEPS, DEV_FILE  encoder, steps of a small run (default: 100), dev pairs
#   RAW          1: small runs start from the raw language model of raw-encoder.sh (its file has to have the digest that was
#                recorded), whose head also gives the substitutions by MLM; with the same OUT
#   PRECISION    arithmetic of a small run (default: auto, bfloat16 where the processor has it)
# shellcheck shell=bash disable=SC2034
set -euo pipefail

: "${SIMCSE_DATA:?set it to the folder with senteval/, wiki/ and nli/}"
SCALE=${SCALE:-full}
RUNS=${OUT:-runs}
OUT=$RUNS/$(basename "$0" .sh)-$SCALE
SEEDS=${SEEDS:-42}
SEED_OPTION=--seed
[[ $SEEDS != *,* ]] || SEED_OPTION=--seeds
SENTEVAL=$SIMCSE_DATA/senteval
OWN_DEV_FILE=${DEV_FILE:-}
DEV_FILE=${DEV_FILE:-$SENTEVAL/downstream/STS/STSBenchmark/sts-dev.csv}

case $SCALE in
  full)
    MODEL=${MODEL:-bert-base}
    WIKI=$SIMCSE_DATA/wiki/wiki1m_for_simcse.txt
    NLI=("$SIMCSE_DATA/nli/snli_1.0_train.jsonl" "$SIMCSE_DATA/nli/multinli_1.0_train.jsonl")
    UNSUP=(--config simcse-unsup-bert-base)
    SUP=(--config simcse-sup-bert-base)
    LENGTH=()
    ;;
  small)
    if [ -n "${RAW:-}" ]; then
      MODEL=$RUNS/raw-encoder-small/raw MLM_MODEL=${MLM_MODEL:-$MODEL}
      (cd "$RUNS/raw-encoder-small" && sha256sum --quiet -c raw.sha256) >&2
    fi
    MODEL=${MODEL:-minilm}
    WIKI=$SIMCSE_DATA/wiki/wiki1m_head.txt
    NLI=("$SIMCSE_DATA/nli/snli_dev.jsonl" "$SIMCSE_DATA/nli/snli_test.jsonl")
    LENGTH=(--max-steps "${STEPS:-100}" --eval-every "${STEPS:-100}" --precision "${PRECISION:-auto}")
    UNSUP=(--mode unsup --pooler cls --batch-size 64 --lr 3e-5 "${LENGTH[@]}")
    SUP=(--mode sup --pooler cls --batch-size 64 --lr 5e-5 "${LENGTH[@]}")
    ;;
  *)
    echo "SCALE=$SCALE: need full or small" >&2
    exit 2
    ;;
esac
mkdir -p "$OUT"
settings="MODEL=$MODEL STEPS=${STEPS:-} DEV_FILE=$DEV_FILE PRECISION=${PRECISION:-}${ALSO:-}"
[ -e "$OUT/settings" ] || echo "$settings" > "$OUT/settings"
if [ "$(cat "$OUT/settings")" != "$settings" ]; then
  printf '%s holds results of\n  %s\nand this call has\n  %s\nname another folder by OUT\n' \
    "$OUT" "$(cat "$OUT/settings")" "$settings" >&2
  exit 2
fi

# set_option OPTION VALUE ARRAY: give an option in an array of arguments another value, or add it
set_option() {
  local -n arguments=$3
  local at
  for at in "${!arguments[@]}"; do
    if [ "${arguments[at]}" = "$1" ]; then
      arguments[at + 1]=$2
      return
    fi
  done
  arguments+=("$1" "$2")
}

# train NAME OPTION...: one run (or one per seed) in $OUT/NAME; an existing run resumes, or is kept if complete
train() {
  local resume=()
  [ ! -d "$OUT/$1" ] || resume=(--resume)
  simcse train --model "$MODEL" --dev-file "$DEV_FILE" "$SEED_OPTION" "$SEEDS" "${@:2}" -o "$OUT/$1" "${resume[@]}"
}

# sweep NAME PLAN OPTION...: the trials of a sweep in $OUT/NAME, kept and continued in the same way
sweep() {
  train "$1" --sweep "$2" "${@:3}"
}

# triplets FILE OPTION...: training file from the NLI corpora, unless it is there
triplets() {
  local file=$OUT/$1
  shift
  [ -s "$file" ] || simcse prepare nli "${NLI[@]}" -o "$file" "$@"
}

# has_wordnet: whether synonyms can be looked up (SIMCSE_WORDNET, or where WordNet usually is); says so if not
has_wordnet() {
  simcse augment - --method synonym --preview 1 <<< "A good dog." > /dev/null 2>&1 || {
    echo "no WordNet database (SIMCSE_WORDNET): the rows with synonyms or EDA are left out" >&2
    return 1
  }
}

# sts NAME MODEL OPTION...: STS result in $OUT/NAME.json, unless it is there
sts() {
  [ -s "$OUT/$1.json" ] || simcse eval sts --model "$2" --data-dir "$SIMCSE_DATA" -o "$OUT/$1.json" "${@:3}"
}

# compare ARGUMENT...: `simcse compare`; scores of one's own DEV_FILE that no published row has are named, and the recipe goes on
compare() {
  local status=0
  simcse compare "$@" 2> "$OUT/compare.log" || status=$?
  cat "$OUT/compare.log" >&2
  if [ "$status" = 1 ] && [ -n "$OWN_DEV_FILE" ] && grep -q "nothing to compare" "$OUT/compare.log"; then
    echo "$OWN_DEV_FILE is no published dev file, so ${1%%=*} stands beside nothing; the recipe goes on" >&2
    return
  fi
  return "$status"
}

# beside TABLE RUN ROW [OPTION...]: a run next to its published row
beside() {
  compare "$2=$OUT/$2" --against "$1" --row "$3" "${@:4}"
}
