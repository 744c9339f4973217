#!/usr/bin/env bash
# Everything that only a GPU can say, in under eight minutes of one H100 or H200: tests/gpu, kernels against
# PyTorch's operators, what every method costs, and answers of real models where weights are there.
#
#     benchmarks/gpu.sh [--dry-run] [FOLDER]
#
# Each step writes its own JSON into FOLDER (benchmarks/results/gpu) as it goes; a step that fails or
# runs out of time stops no other, and makes the exit status 1. --dry-run: small shapes on the CPU, to
# see that all of it runs.
# WEIGHTS: a folder of NAME.gguf or NAME/, for each NAME of MODELS (see real_models_all.sh); parts.py
# cuts a large file for a machine that takes little at a time. Then, on any machine:
# python benchmarks/gpu_table.py FOLDER
set -uo pipefail

MODELS=${MODELS:-"smollm2 qwen05 qwen15"}
export CELLS=${CELLS:-main20 main10} # of real_models_all.sh
LIMIT=${LIMIT:-470} # seconds, of all steps together

DEVICE=cuda DTYPE=bfloat16
options=() folder=benchmarks/results/gpu failed=0
for argument; do
    case $argument in
        --dry-run)
            DEVICE=cpu DTYPE=float32
            options=(--device cpu --tiny)
            export SCALE=1 BATCH=2 JOBS=1
            ;;
        -*) echo "$0 knows --dry-run and a folder, not $argument." && exit 2 ;;
        *) folder=$argument ;;
    esac
done
out=$(realpath -m "$folder")
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
    ((seconds > 0)) || { failed=1 && echo "Left out: the time is up." && return; }
    timeout -k 5 "$seconds" "$@" || { failed=1 && echo "This step ended with an error."; }
}

{
    [[ $DEVICE == cpu ]] ||
        step 140 "$python" benchmarks/gpu.py tests --seconds 105 --output "$out/tests.json"
    step 80 "$python" benchmarks/gpu_kernels.py --seconds 65 "${options[@]}" --output "$out/kernels.json"
    step 200 "$python" benchmarks/gpu.py methods "${options[@]}" --output "$out/methods.json"
    found=()
    for model in $MODELS; do
        [[ -e $WEIGHTS/$model || -e $WEIGHTS/$model.gguf ]] && found+=("$model")
    done
    if ((${#found[@]})); then
        WEIGHTS=$WEIGHTS RESULTS=$out/real_models DEVICE=$DEVICE DTYPE=$DTYPE \
            step $((LIMIT - SECONDS)) benchmarks/real_models_all.sh "${found[@]}"
        RESULTS=$out/real_models benchmarks/real_models_all.sh collect
    else
        echo "Left out: no weights of $MODELS in $WEIGHTS."
    fi
    printf '\nDone after %s s.\n' "$SECONDS"
    exit "$failed"
} 2>&1 | tee "$out/log.txt"
