#!/bin/bash
# Sets up all rivals in a folder, makes the first model in other formats, and runs all comparisons.
# usage: run-all.sh DIR MODEL.gguf...
#   DIR/{llama,ik,mistralrs,kt}  the rivals; existing ones are kept
#   DIR/*.json, DIR/*.txt        the results
# ROUNDS=n (5), THREADS=1,2, PREFIX='taskset -c 0,1' are settings.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,6p' "$0" >&2; exit 2; fi
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
models=("$@")

have=()
for name in llama ik mistralrs kt; do
  # A rival that cannot be set up is reported and left out.
  if "$here/peers/setup.sh" "$name" "$dir/$name" > "$dir/$name.log" 2>&1; then have+=("$name"); else
    echo "NOT MEASURED: $name cannot be set up here, see $dir/$name.log"
  fi
done
places=()
for name in "${have[@]}"; do
  case $name in
  llama | ik) places+=("--$name" "$dir/$name/build/bin") ;;
  *) places+=("--$name" "$dir/$name/venv/bin/python") ;;
  esac
done

cd "$here/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --release -p ixc -p ixc-bench

compare() { # NAME ARGUMENT...
  local name=$1; shift
  "$target/release/ixc-bench" compare --ixc "$target/release/ixc" "${places[@]}" --threads "${THREADS:-1,2}" \
    --rounds "${ROUNDS:-5}" ${PREFIX:+--prefix "$PREFIX"} --json "$dir/$name.json" "$@" | tee "$dir/$name.txt"
}

variants=()
if [[ " ${have[*]} " == *" llama "* ]]; then
  mapfile -t variants < <("$here/peers/variants.sh" "$dir/llama/build/bin" "${models[0]}" "$dir" | sed 's/ is there already$//')
fi
compare models --first-token "${models[@]}"
compare depth --prefill 0 --decode 0 --depth 8192 --depth-rounds 2 "${models[0]}"
[ ${#variants[@]} = 0 ] || compare formats --prefill 512 "${variants[@]}"
compare layer --layer "$dir/layer.gguf"
