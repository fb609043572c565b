#!/usr/bin/env bash
# Measures ixc on this machine. Nothing else may run. Results go to $OUT (out). Run check.sh first;
# see README.md.
#
#     ./speed.sh [SECTION]...    runs these functions in this order; by default those up to prompt()
#
# T=16: threads, by default all processors. FORMATS: models for formats(), such as "dense1b:Q8_0
# moe4b:MXFP4". LANES=4: simultaneous measurements.
cd "$(dirname "$0")" || exit
OUT=${OUT:-$PWD/out}
T=${T:-$(nproc)}
mkdir -p "$OUT"
exec > >(tee -a "$OUT/speed.log") 2>&1
export PYTHONPATH=$PWD/py
places=()
[ ! -d lb/bin ] || places+=(--llama lb/bin)
[ ! -d ib/bin ] || places+=(--ik ib/bin)

machine() {
  echo "== the machine: tile products, caches, barriers, memory"
  # The programs ask for AMX before they use it. Without AVX-512 gcc does not compile them, and
  # prints that.
  flags=(-O2 -march=native -mamx-tile -mamx-int8 -mamx-bf16 -pthread)
  if gcc "${flags[@]}" silicon.c -o silicon; then timeout 100 ./silicon "$T"; fi
  if gcc "${flags[@]}" product.c -o product; then taskset -c 0 ./product; fi
}

kernels() {
  echo "== kernels, one thread, from caches"
  for kernel in tiles_q4_k_r16 tiles_q6_k_r16 tiles_q8_0_r16 tiles_bf16_r16 gemm_q4_k_r16; do
    for rows in 16 32 64 128 256 512; do
      echo "$kernel $rows: $(taskset -c 0 timeout 60 bin/ixc kernel bench "$kernel" --rows $rows -r 3 -t 1 2>&1 | grep -a caches)"
    done
  done
  echo "== kernels, one thread and all, from memory"
  for kernel in gemv_q4_k_r16 gemv_q6_k_r16 gemv_q8_0_r16 attention_128 attention_tiles_128; do
    echo "$kernel: $(timeout 60 bin/ixc kernel bench "$kernel" -r 3 -t "1,$T" 2>&1 | grep -a memory)"
  done
}

models() {
  echo "== models"
  timeout 400 bin/ixc-bench compare --ixc native=bin/ixc --ixc avx512=bin/ixc@avx512 "${places[@]}" -t "$T" -p 32,128,512 -n 64 \
    --rounds 3 --screen 15 --json "$OUT/models.json" moe4b.gguf dense1b.gguf
  for model in moe4b dense1b; do bin/ixc bench $model.gguf -p 512 -n 64 -t "1,2,4,8,$((T - 1)),$T" -r 2; done
  [ ! -e moe30b.gguf ] || timeout 200 bin/ixc bench moe30b.gguf -p 128,512,2048 -n 64 -t "$T" -r 2
}

bands() {
  echo "== decode without bands, and prompts in steps of 512, beside what is the default"
  for model in moe4b dense1b; do
    bin/ixc compile $model.gguf -o default.ixp > /dev/null 2>&1
    bin/ixc compile $model.gguf -o whole.ixp --set tile.items=0 -b 512 > /dev/null 2>&1
    for round in 1 2 3; do
      for plan in default whole; do
        echo "$model $plan $round: $(bin/ixc bench $plan.ixp -p 2048 -n 64 -t "$((T - 1)),$T" -r 1 2>&1 | grep -a 'prefill\|decode')"
      done
    done
  done
}

layer() {
  echo "== a layer of experts"
  bin/ixc-bench layer --file layer.gguf -t "$T"
  if ls kt/_kt_kernel_ext_amx*.so > /dev/null 2>&1; then
    # The calling thread takes a whole processor.
    LD_LIBRARY_PATH=kt/kt_kernel.libs python3 kt_amx.py kt --threads $((T - 1)) --seconds 1 --kinds Int8,Int4 --tokens 1,128,512,2048 |
      grep -a RESULT
  fi
}

token() {
  echo "== where a token's time goes"
  for model in moe4b dense1b; do
    bin/ixc run $model.gguf --raw -p "$(head -c 1200 synth.py)" -n 64 --temp 0 --stats -t "$T" --trace "$model.json" < /dev/null 2>&1 |
      grep -a '^prefill\|^decode\|^limits\|^load'
    python3 stages.py "$model.json"
  done
}

# The tokenizer of synth.py has a token for each byte, and three tokens for each space.
prompt() {
  echo "== where the time of a prompt of some 5,400 tokens goes"
  for model in moe4b dense1b moe30b; do
    [ -e $model.gguf ] || continue
    yes "$(cat synth.py)" | head -c 4000 > long.txt
    timeout 200 bin/ixc run $model.gguf --raw -f long.txt -n 1 --temp 0 --ctx 8192 --stats -t "$T" 2>&1 > /dev/null | grep -a '^prefill\|^limits'
  done
}

# Measures a model in each of FORMATS next to rivals, with LANES models at once on separate
# processors. Missing models are made and kept.
formats() {
  echo "== formats, ${LANES:-1} at once"
  lane() { # NUMBER PAIR...
    each=$((T / ${LANES:-1}))
    for pair in "${@:2}"; do
      model=${pair/:/-}.gguf
      [ -e "$model" ] || python3 synth.py "${pair%:*}" "$model" "${pair#*:}" > /dev/null
      timeout 300 bin/ixc-bench compare --ixc native=bin/ixc "${places[@]}" -t $each -p "${P:-128}" -n 24 --rounds "${ROUNDS:-3}" --screen 10 \
        --bandwidth-size 0.5 --prefix "taskset -c $(($1 * each))-$((($1 + 1) * each - 1))" --json "$OUT/${pair/:/-}.json" "$model" > "${pair/:/-}.txt" 2>&1
      cat "${pair/:/-}.txt"
    done
  }
  # shellcheck disable=SC2206 # A list.
  pairs=($FORMATS) lanes=()
  for number in $(seq 0 $((${LANES:-1} - 1))); do
    mine=()
    for at in $(seq "$number" "${LANES:-1}" $((${#pairs[@]} - 1))); do mine+=("${pairs[at]}"); done
    lane "$number" "${mine[@]}" &
    lanes+=($!)
  done
  wait "${lanes[@]}"
}

# Simultaneous streams next to llama-server, also with --exact-batch: each stream then has the bits
# that it has alone.
streams() {
  echo "== streams"
  [ ! -e lb/bin/llama-server ] || for model in ${MODELS:-moe4b dense1b}; do
    python3 serving.py $model.gguf --llama lb/bin/llama-server --ixc bin/ixc --threads "$T" --rounds "${ROUNDS:-3}" --json "$OUT/streams-$model.json" \
      --ixc-variant="--exact-batch" --variant="" --variant="--no-repack -fa on" 2> /dev/null
  done
}

# Finds tilings of a model's steps that are faster than the choice by cache sizes, and measures the
# model with them.
tune() {
  for model in ${MODELS:-dense1b}; do
    echo "== tuning $model"
    timeout "${TUNE_S:-300}" bin/ixc kernel tune "$model.gguf" -t "$T" -r "${TUNE_R:-15}" -o "tuned-$model.json" > "$OUT/tune-$model.txt" 2>&1
    cat "$OUT/tune-$model.txt"
    [ -e "tuned-$model.json" ] || continue
    for round in 1 2 3 4 5; do
      for tuned in none "tuned-$model.json"; do
        echo "$model $tuned $round: $(bin/ixc bench "$model.gguf" --tuned "$tuned" -p 512 -n 64 -t "$T" -r 1 2>&1 | grep -a 'prefill\|decode' | tr '\n' ' ')"
      done
    done
  done
}

# Quantising, next to llama-quantize.
quantise() {
  echo "== quantise"
  [ -e dense1b-F16.gguf ] || python3 synth.py dense1b dense1b-F16.gguf F16 > /dev/null
  for mix in ${MIXES:-Q8_0 Q4_0 Q4_K_M Q6_K Q3_K_M IQ4_XS}; do
    for round in 1 2; do
      for who in ixc llama; do
        begun=$(date +%s.%N)
        case $who in
        ixc) timeout 100 bin/ixc quantise dense1b-F16.gguf $mix -o q.gguf --force -t "$T" > q.log 2>&1 || tail -1 q.log ;;
        llama) timeout 100 lb/bin/llama-quantize --allow-requantize dense1b-F16.gguf q.gguf $mix "$T" > q.log 2>&1 || tail -1 q.log ;;
        esac
        echo "$mix $round $who: $(awk "BEGIN { print $(date +%s.%N) - $begun }") s"
        rm -f q.gguf
      done
    done
  done
}

for section in "${@:-machine kernels models bands layer token prompt}"; do
  # shellcheck disable=SC2086 # The default is a list.
  for name in $section; do "$name"; done
done
