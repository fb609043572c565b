#!/usr/bin/env bash
# Checks that ixc is correct on this machine, while rivals are built and models made. Results go to
# $OUT (out). See README.md.
# BIG=1 also makes moe30b (18 GB).
cd "$(dirname "$0")" || exit
OUT=${OUT:-$PWD/out}
mkdir -p "$OUT" py
exec > >(tee "$OUT/check.log") 2>&1
python3 -m zipfile -e gguf-*.whl py
export PYTHONPATH=$PWD/py

jobs=()
flags=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF)
build() { # SOURCES FOLDER FLAG PROGRAM...
  cmake -S "$1" -B "$2" "${flags[@]}" "$3" && ninja -C "$2" "${@:4}"
}
if [ -e rivals.tar.xz ]; then
  tar xJf rivals.tar.xz
else
  if [ -d llama ]; then build llama lb -DLLAMA_BUILD_EXAMPLES=OFF llama-bench llama-completion > lb.log 2>&1 & jobs+=($!); fi
  if [ -d ik ]; then build ik ib -DLLAMA_BUILD_EXAMPLES=ON llama-bench > ib.log 2>&1 & jobs+=($!); fi
fi
for model in dense1b moe4b ${BIG:+moe30b}; do
  [ -e "$model.gguf" ] || python3 synth.py "$model" "$model.gguf"
done > synth.log 2>&1 &
jobs+=($!)

bin/ixc doctor

echo "== kernels, native against the interpreter"
for kernel in $(bin/ixc kernel list --target native | awk '/^[^ ]/ && $2 != "not" { print $1 }'); do
  for rows in "" "--rows 1" "--rows 17" "--rows 33"; do
    # shellcheck disable=SC2086 # An option and its value, or nothing.
    said=$(timeout 60 bin/ixc kernel run "$kernel" $rows --seed 3 2>&1) || case $said in
    *"must be in"* | *"takes at most"*) ;; # The kernel takes no such number of rows.
    *) echo "FAIL $kernel $rows: $(tail -1 <<< "$said")" ;;
    esac
  done
done

echo "== logits, native against the emulator, and against exact ones where there are some"
logits() { # MODEL
  name=$(basename "$1" .gguf)
  tokens=$(python3 check_logits.py --tokens "$name")
  for target in avx2 avx512 amx; do
    if bin/ixc logits "$1" --tokens "$tokens" --target "$target" -o "$name-$target.npy" 2> /dev/null; then
      timeout 300 bin/ixc logits "$1" --tokens "$tokens" --target "$target" --emulate -o "$name-$target-e.npy"
      python3 check_logits.py "$name" "$target"
    else
      echo "$name $target: does not run here"
    fi
  done
}
export -f logits
ls models/*.gguf | xargs -P 6 -I{} bash -c 'logits {}'

for program in tests/*; do
  echo "== test program $program"
  CARGO_MANIFEST_DIR=$PWD/codegen timeout 300 "$program" 2>&1 | tail -8
done

echo "== instructions that failed, one by one against this processor"
while read -r mnemonic; do
  IXC_MNEMONIC=$mnemonic timeout 60 tests/emulator native > mnemonic.log 2>&1 || echo "$mnemonic: $(tail -1 mnemonic.log)"
done < mnemonics.txt

for job in "${jobs[@]}"; do wait "$job"; done
cat synth.log
# Keeps the built rivals for the next kit.
mapfile -t built < <(ls -d lb/bin ib/bin 2> /dev/null; find lb ib -name '*.so*' 2> /dev/null)
[ ${#built[@]} = 0 ] || tar c "${built[@]}" | xz -T0 -3 > "$OUT/rivals.tar.xz"
ls -l "$OUT"
