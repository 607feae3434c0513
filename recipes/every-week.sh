#!/usr/bin/env bash
# A table with ids that comes every week: duplicates among what is new, vectors and indexes in step, questions, groups.
#
#   recipes/every-week.sh WEEK.csv FOLDER
#
# WEEK.csv has all rows of the week; FOLDER keeps what is known of them from week to week, and the results:
# duplicates.csv, tickets.parquet (id, text, vector), tickets.index, answers.csv (to questions.txt, if it is there), groups.csv
# and groups.html. It stops at the first command that fails, with its exit code; the next call goes on from there.
#
#   TEXT   template of the texts (default: {subject} {body})      ID     column of ids (default: id)
#   MODEL  run folder, model folder, name or alias (minilm)       K      number of groups (8)
#   THRESHOLD  least cosine of duplicates (0.9)                   GONE   drop: forget rows that the file has no more
#   INDEX  name of the index (tickets.index); tickets.faiss is one for FAISS too, and needs the extra
set -euo pipefail

[ $# = 2 ] || { echo "usage: $0 WEEK.csv FOLDER" >&2; exit 2; }
week=$1 folder=$2
index=$folder/${INDEX:-tickets.index}
default='{subject} {body}'
texts=(--text "${TEXT:-$default}" --id-column "${ID:-id}")
model=(--model "${MODEL:-minilm}")
trap 'echo "every-week.sh: stopped at: $step" >&2' ERR
mkdir -p "$folder"

# 1. Rows that are new or have another text, and repeat one that is known.
step=duplicates
against=()
[ ! -e "$folder/last.csv" ] || against=(--against "$folder/last.csv")
simcse prepare duplicates "$week" "${texts[@]}" "${model[@]}" --threshold "${THRESHOLD:-0.9}" "${against[@]}" \
  -o "$folder/duplicates.csv" --force

# 2. Vectors for DuckDB and others, and an index for `analyze search`, of what is new or changed.
step=vectors
gone=()
[ "${GONE:-}" != drop ] || gone=(--drop-gone)
simcse encode "$week" "${texts[@]}" "${model[@]}" --normalize -o "$folder/tickets.parquet" \
  --index "$index" --update "${gone[@]}"

# 3. The rows that are nearest to questions of every week.
step=search
if [ -e "$folder/questions.txt" ]; then
  simcse analyze search --index "$index" "${model[@]}" --queries "$folder/questions.txt" --top-k 5 \
    --format csv -o "$folder/answers.csv" --force
fi

# 4. Groups, with their words and typical texts.
step=groups
simcse analyze groups "$week" "${texts[@]}" "${model[@]}" --k "${K:-8}" \
  --format csv -o "$folder/groups.csv" --html "$folder/groups.html" --force

# 5. This week is what the next one is compared with: last, so that a call that failed can be repeated.
step="the copy of $week"
cp "$week" "$folder/.last.csv"
mv "$folder/.last.csv" "$folder/last.csv"
