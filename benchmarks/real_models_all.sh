#!/usr/bin/env bash
# Every cell of the real-model table on one GPU, the most important first, JOBS processes at a time.
#
#   WEIGHTS=FOLDER RESULTS=FOLDER benchmarks/real_models_all.sh [smollm2 qwen05 qwen15]
#
# WEIGHTS holds NAME.gguf or NAME/ for each model (transformers before 5.18 needs NAME-tokenizer/
# beside a .gguf); those that are missing are waited for, WAIT seconds at most. CELLS chooses among the names of `job`. Each job writes into a folder of its own
# under RESULTS; `collect` as the only argument joins them. Under CUDA's multi-process service, where it runs, small kernels of several
# processes run side by side.
set -u
cd "$(dirname "$0")/.."
RESULTS=$(realpath -m "$RESULTS")
DEVICE=${DEVICE:-cuda} DTYPE=${DTYPE:-bfloat16} BATCH=${BATCH:-32} JOBS=${JOBS:-12} WAIT=${WAIT:-600}
SCALE=${SCALE:-100} # percent of the questions
export PYTHONPATH=$PWD:$PWD/benchmarks OMP_NUM_THREADS=1 DEVICE DTYPE BATCH WEIGHTS RESULTS WAIT SCALE
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTORCH_ALLOC_CONF=expandable_segments:True

collect() {
    for name in $(cd "$RESULTS" && ls -d ./*/*.jsonl | xargs -n1 basename | sort -u); do
        cat "$RESULTS"/*/"$name" >"$RESULTS/$name"
    done
    mkdir -p "$RESULTS/profiles" && cp "$RESULTS"/*/profiles/*.json "$RESULTS/profiles" 2>/dev/null
    true
}

# table DOCUMENTS QUESTIONS [further arguments of real_models.py]
table() {
    python3 benchmarks/real_models.py --model "$model" --weights "$weights" "${options[@]}" --device "$DEVICE" \
        --dtype "$DTYPE" --batch "$batch" --results "$out" --threads 1 --documents "$1" \
        --limit $((($2 * SCALE + 99) / 100)) "${@:3}"
}

fit() {
    python3 benchmarks/real_models_fit.py --model "$model" --weights "$weights" "${options[@]}" --device "$DEVICE" \
        --dtype "$DTYPE" --batch "$batch" --results "$out" --questions "${QUESTIONS:-30}" --methods "$@"
}

job() {
    model=$1 name=$2 out=$RESULTS/$1-$2 batch=$BATCH
    [ "$model" = qwen15 ] && batch=$(((BATCH + 1) / 2))
    weights=$WEIGHTS/$model
    for _ in $(seq "$WAIT"); do
        [ -e "$weights" ] || [ -e "$weights.gguf" ] && break
        sleep 1
    done
    [ -e "$weights" ] || weights=$weights.gguf
    [ -e "$weights" ] || { echo "$weights is missing" && return; }
    options=()
    [ -e "$WEIGHTS/$model-tokenizer" ] && options=(--tokenizer "$WEIGHTS/$model-tokenizer")
    mkdir -p "$out"
    case $model in smollm2) many=500 some=200 pairs=20 ;; qwen05) many=300 some=100 pairs=40 ;;
        *) many=200 some=100 pairs=75 ;; esac
    ends="position:0 position:4 position:9"
    controls="gold_only closed_book best_first best_last"
    case $name in
        main10) table 10 "$many" --methods none pine rotor --conditions $ends $controls ;;
        orders10) table 10 "$some" --methods long_context_reorder attention_sorting attn_rank \
            attention_calibration prompt_repetition permutation --conditions $ends ;;
        blocks10) table 10 "$some" --methods ape parallel_context_windows set_based_prompting \
            no_inter_document_attention structured_prompting cacheblend "self_extend 256" \
            self_extend --conditions $ends ;;
        scales10) table 10 "$some" --methods ms_poe "ms_poe 1.0-1.2 awareness" \
            "position_interpolation 0.9" "position_interpolation 1.1" "position_interpolation 1.2" \
            "position_interpolation 1.5" "lpes linear 1.0-1.1" "lpes linear 1.1-1.0" \
            "position_interpolation 0.5" "position_interpolation 2.0" \
            "position_interpolation 1.05" --conditions $ends ;;
        heads10) table 10 "$some" --methods "ms_poe 1.0-1.2 random" "ms_poe 1.0-1.2 sequential" \
            "ms_poe 1.0-1.2 entropy" "ms_poe 1.0-1.2 code" "pine no_reassignment" \
            "pine reversed" --conditions $ends ;;
        weights10) table 10 "$some" --methods siw "siw 0.7-1.3" "siw 1.1-0.9" "zero_tuning 1.5" \
            "zero_tuning 0.7" dsas dysco "moice uniform" "attention_buckets 1.0-1.1" \
            attention_buckets --conditions $ends ;;
        measured10 | measured20) # the order by accuracy on other questions
            n=${name#measured}
            every=$(seq -f "position:%g" 0 $((n - 1)))
            table "$n" 150 --fit --methods none --conditions $every
            accuracy=$(python3 - "$out/${model}_nq${n}_fit.jsonl" "$n" <<'PY'
import json, sys
right = [[] for _ in range(int(sys.argv[2]))]
for line in map(json.loads, open(sys.argv[1])):
    if "method" in line:
        right[int(line["condition"][9:])].append(line["correct"])
print(json.dumps({"accuracy": [sum(x) / len(x) for x in right]}))
PY
            )
            table "$n" "$many" --conditions best_first best_last --methods none pine rotor \
                "measured_order=measured_order with $accuracy" ;;
        lpes10)
            fit lpes lpes_random
            mean=$(python3 -c "import json, sys, statistics as s
print(round(s.mean(json.load(open(sys.argv[1]))['options']['factors']), 3))" \
                "$out/profiles/${model}_lpes.json")
            drawn=$(python3 -c "import json, sys
print(json.dumps({'factors': json.load(open(sys.argv[1]))['factors']}))" \
                "$out/profiles/${model}_lpes_random.json")
            table 10 "$some" --conditions $ends --methods \
                "lpes fitted=profile:$out/profiles/${model}_lpes.json" \
                "position_interpolation, mean of lpes=position_interpolation with {\"scale\": $mean}" \
                "lpes random=lpes with $drawn" ;;
        channel10)
            fit positional_hidden_states
            sweep=()
            while IFS= read -r label; do sweep+=("$label"); done < <(
                python3 - "$out/profiles/${model}_positional_hidden_states.json" <<'PY'
import json, random, sys
options = json.load(open(sys.argv[1]))["options"]
other = dict(options, channels=[random.Random(0).randrange(500)])
for name, fields in (("channel", options), ("random channel", other)):
    for factor in (2, 0.5, 0, -1, -2):
        chosen = json.dumps({**fields, "factor": factor})
        print(f"{name} x {factor}=positional_hidden_states with {chosen}")
PY
            )
            table 10 "$some" --conditions $ends --methods "${sweep[@]}" \
                "positional_hidden_states fitted=profile:$out/profiles/${model}_positional_hidden_states.json" ;;
        fitted10)
            for method in siw zero_tuning self_extend ms_poe; do
                fit $method && table 10 "$some" --conditions $ends --methods \
                    "$method fitted=profile:$out/profiles/${model}_$method.json"
            done ;;
        main20) table 20 "$many" --methods none pine rotor long_context_reorder \
            --conditions position:0 position:9 position:19 ;;
        more20) table 20 "$some" --conditions position:0 position:9 position:19 --methods \
            attention_sorting attn_rank siw parallel_context_windows ape self_extend \
            "ms_poe 1.0-1.2 awareness" "position_interpolation 1.1" "zero_tuning 1.5" dsas ;;
        main5) table 5 "$some" --methods none pine rotor ape parallel_context_windows \
            --conditions position:0 position:2 position:4 ;;
        main30) table 30 "$some" --methods none pine rotor \
            --conditions position:0 position:14 position:29 ;;
        keys) table $pairs "$some" --task kv --methods none pine rotor \
            "position_interpolation 1.1" ms_poe "ms_poe 1.0-1.2 awareness" siw self_extend \
            attention_sorting ;;
    esac
}

if [ "${1:-}" = collect ]; then collect && exit; fi
if [ "${1:-}" = job ]; then job "$2" "$3" && exit; fi
models=("$@")
[ ${#models[@]} = 0 ] && models=(smollm2 qwen05 qwen15)
mkdir -p "$RESULTS" && python3 -c "import real_models as r; r.question_file(True); r.question_file(False)"
for name in ${CELLS:-main10 measured10 main20 lpes10 channel10 fitted10 orders10 blocks10 scales10 \
    weights10 heads10 keys main5 main30 measured20 more20}; do
    for model in "${models[@]}"; do
        [ "$model-$name" = smollm2-main30 ] || echo "$model $name"
    done
done | xargs -P "$JOBS" -L 1 sh -c \
    'bash benchmarks/real_models_all.sh job "$0" "$1" >"$RESULTS/$0-$1.log" 2>&1'
collect
