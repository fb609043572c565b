#!/bin/bash
# Makes Q8_0, Q4_0, Q6_K and F16 files next to a model, with every matrix in that format.
# usage: variants.sh LLAMA_BIN_DIR MODEL.gguf [OUT_DIR]
# Such a file's numbers are rounded a second time: use it for speed, not for quality.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,4p' "$0" >&2; exit 2; fi
bin=$1 model=$2 out=${3:-$(dirname "$2")}
name=$(basename "$model" .gguf)
for format in Q8_0 Q4_0 Q6_K F16; do
  to=$out/$name-$(echo "$format" | tr '[:upper:]' '[:lower:]').gguf
  if [ -e "$to" ]; then echo "$to is there already"; continue; fi
  # A partly written file must not be taken for the model.
  "$bin/llama-quantize" --allow-requantize --pure "$model" "$to.part" "$format" "$(nproc)" >"$to.log" 2>&1 ||
    { tail -5 "$to.log" >&2; exit 1; }
  mv "$to.part" "$to"; rm "$to.log"
  echo "$to"
done
