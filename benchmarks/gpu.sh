#!/usr/bin/env bash
# Everything that only a GPU can say, in under eight minutes of one H100: tests/gpu, kernels against
# PyTorch's operators, what every method costs, and answers of real models where weights are there.
#
#     benchmarks/gpu.sh [--dry-run] [FOLDER]
#
# Each step writes its own JSON into FOLDER (benchmarks/results/gpu) as it goes; a step that fails or
# runs out of time stops no other. --dry-run: small shapes on the CPU, to see that all of it runs.
# WEIGHTS: a folder of NAME.gguf or NAME/, for each NAME of MODELS. Then, on any machine:
# python benchmarks/gpu_table.py FOLDER
set -uo pipefail

MODELS=${MODELS:-"smollm2 qwen05 qwen15"}
METHODS=${METHODS:-"none pine rotor ms_poe ape parallel_context_windows siw long_context_reorder"}
DOCUMENTS=${DOCUMENTS:-20}
QUESTIONS=${QUESTIONS:-500}
BATCH=${BATCH:-16}
LIMIT=${LIMIT:-470} # seconds, of all steps together

DEVICE=cuda DTYPE=bfloat16
options=()
if [[ ${1:-} == --dry-run ]]; then
    DEVICE=cpu DTYPE=float32
    options=(--device cpu --tiny)
    QUESTIONS=2 BATCH=2
    shift
fi
out=$(realpath -m "${1:-benchmarks/results/gpu}")
WEIGHTS=$(realpath -m "${WEIGHTS:-build/weights}")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
python=${PYTHON:-python3}

# Seconds that a step may take, and its command. Python steps stop by themselves a little earlier.
step() {
    local seconds=$(($1 < LIMIT - SECONDS ? $1 : LIMIT - SECONDS))
    shift
    printf '\n== %s (at %s s, for %s s)\n' "$*" "$SECONDS" "$seconds"
    ((seconds > 0)) || { echo "Left out: the time is up." && return; }
    timeout -k 5 "$seconds" "$@" || echo "This step ended with status $?."
}

{
    [[ $DEVICE == cpu ]] ||
        step 165 "$python" benchmarks/gpu.py tests --output "$out/tests.json"
    step 110 "$python" benchmarks/gpu_kernels.py "${options[@]}" --output "$out/kernels.json"
    step 200 "$python" benchmarks/gpu.py methods "${options[@]}" --output "$out/methods.json"
    left=$(wc -w <<<"$MODELS")
    for model in $MODELS; do
        weights=$WEIGHTS/$model
        [[ -e $weights ]] || weights=$weights.gguf
        if [[ ! -e $weights ]]; then
            echo "Left out: no weights of $model in $WEIGHTS."
            left=$((left - 1))
            continue
        fi
        # shellcheck disable=SC2086
        step $(((LIMIT - SECONDS) / left)) "$python" benchmarks/real_models.py run \
            --model "$model" --weights "$weights" --documents "$DOCUMENTS" --limit "$QUESTIONS" \
            --methods $METHODS --device "$DEVICE" --batch "$BATCH" --dtype "$DTYPE"
        cp "benchmarks/results/real_models/${model}_nq$DOCUMENTS.jsonl" "$out/" 2>/dev/null || true
        left=$((left - 1))
    done
    printf '\nDone after %s s.\n' "$SECONDS"
} 2>&1 | tee "$out/log.txt"
