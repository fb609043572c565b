#!/usr/bin/env bash
# How fast is ixc on this machine? Nothing else may run. Results go to $OUT (out). After check.sh; see README.md.
# T=16: threads, all processors by default.
cd "$(dirname "$0")" || exit
OUT=${OUT:-$PWD/out}
T=${T:-$(nproc)}
mkdir -p "$OUT"
exec > >(tee "$OUT/speed.log") 2>&1
export PYTHONPATH=$PWD/py

echo "== the machine: tile products, caches, barriers, memory"
# The programs ask for AMX before they use it; without AVX-512 they are not compiled, which gcc says.
flags=(-O2 -march=native -mamx-tile -mamx-int8 -mamx-bf16 -pthread)
if gcc "${flags[@]}" silicon.c -o silicon; then timeout 100 ./silicon "$T"; fi
if gcc "${flags[@]}" product.c -o product; then taskset -c 0 ./product; fi

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

echo "== models"
places=()
[ ! -d lb/bin ] || places+=(--llama lb/bin)
[ ! -d ib/bin ] || places+=(--ik ib/bin)
timeout 400 bin/ixc-bench compare --ixc native=bin/ixc --ixc avx512=bin/ixc@avx512 "${places[@]}" -t "$T" -p 32,128,512 -n 64 \
  --rounds 3 --screen 15 --json "$OUT/models.json" moe4b.gguf dense1b.gguf
for model in moe4b dense1b; do bin/ixc bench $model.gguf -p 512 -n 64 -t "1,2,4,8,$((T - 1)),$T" -r 2; done
[ ! -e moe30b.gguf ] || timeout 200 bin/ixc bench moe30b.gguf -p 128,512,2048 -n 64 -t "$T" -r 2

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

echo "== a layer of experts"
bin/ixc-bench layer --file layer.gguf -t "$T"
if ls kt/_kt_kernel_ext_amx*.so > /dev/null 2>&1; then
  # The thread that calls it takes a processor of its own.
  LD_LIBRARY_PATH=kt/kt_kernel.libs python3 kt_amx.py kt --threads $((T - 1)) --seconds 1 --kinds Int8,Int4 --tokens 1,128,512,2048 |
    grep -a RESULT
fi

echo "== where a token's time goes"
for model in moe4b dense1b; do
  bin/ixc run $model.gguf -p "$(head -c 1200 synth.py)" -n 64 --temp 0 --stats -t "$T" --trace "$model.json" < /dev/null 2>&1 |
    grep -a '^prefill\|^decode\|^limits\|^load'
  python3 stages.py "$model.json"
done

# The tokenizer of synth.py has bytes, and three of them for each space.
echo "== where the time of a prompt of some 5,400 tokens goes"
for model in moe4b dense1b moe30b; do
  [ -e $model.gguf ] || continue
  yes "$(cat synth.py)" | head -c 4000 > long.txt
  timeout 200 bin/ixc run $model.gguf -f long.txt -n 1 --temp 0 --ctx 8192 --stats -t "$T" 2>&1 > /dev/null | grep -a '^prefill\|^limits'
done
