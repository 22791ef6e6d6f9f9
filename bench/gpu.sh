#!/usr/bin/env bash
# What needs a GPU, one step after another. Each step leaves its log, and all of them their records, in a folder.
#
#   bench/gpu.sh FOLDER [STEP...]     WARMLANE_PYTHON=python3 names the interpreter, default .venv/bin/python;
#                                     WHEELS=FOLDER installs the peers from files, where there is no network
#
# A step that fails, or takes longer than its limit, leaves the others alone; the last line says which did.
set -uo pipefail
cd "$(dirname "$0")/.."

folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(tests parity decode feed fed load imagenet ladder ladder-b0 decoder peers)
python=${WARMLANE_PYTHON:-.venv/bin/python}
export PYTHONPATH=protos:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# As many of each as made most of 16 cores (bench/LOG.md, 2026-11-30).
load=(-m bench.load --no-ceiling --rounds 3 --callers 192 --processes 6)
served=(--model resnet50 --weights none --frontends "${FRONTENDS:-8}" --decode-threads 1)
# Compiled and started once each, within the time that a step has: all of them as the recorded run had it.
peers=(--device cuda --model resnet50 --weights none --callers 1,32,128 --processes 6 --slo-ms 50 --once --rate 500
    --peers warmlane,warmlane-cpu,litserve,mosec,ray-serve,bentoml,pytriton --seconds 4 --warmup-seconds 1.5
    --start-timeout 100 --python "$python" ${WHEELS:+--wheels "$WHEELS"})
# A model takes about 250 s, most of them starts.
ladder=(--frontends "${FRONTENDS:-8}" --seconds 2 --warmup-seconds 0.7 --profile-seconds 3.5)

# Seconds at most, and a command.
command_of() {
    case $1 in
        tests) echo 300 "$python" -m pytest -q tests/gpu ;;
        parity) echo 120 "$python" -m bench.parity ;;
        decode) echo 120 "$python" -m bench.gpu_decode ;;
        feed) echo 120 "$python" -m bench.feed --model resnet50 --weights none ;;
        load) echo 240 "$python" "${load[@]}" --mix small --scenario single,stream,closed,open,sweep --slo-ms 25 -- "${served[@]}" ;;
        imagenet) echo 120 "$python" "${load[@]}" --mix imagenet --scenario stream -- "${served[@]}" ;;
        fed) echo 60 "$python" -m bench.without_grpc --feeders 6 --in-flight 32 -- --model resnet50 --weights none --slots 128 ;;
        ladder) echo 400 "$python" -m bench.ladder --models resnet50 "${ladder[@]}" ;;
        ladder-b0) echo 400 "$python" -m bench.ladder --models efficientnet_b0 "${ladder[@]}" ;;
        decoder) echo 240 "$python" -m bench.decoder ;;
        peers) echo 560 "$python" -m bench.peers "${peers[@]}" ;;
        *) return 1 ;;
    esac
}

before=$(mktemp)
failed=()
for step in "${steps[@]}"; do
    command=$(command_of "$step") || { echo "no step $step" >&2; exit 2; }
    started=$SECONDS
    # shellcheck disable=SC2086
    timeout $command >"$folder/$step.log" 2>&1 </dev/null && outcome=done || { outcome="failed with $?"; failed+=("$step"); }
    echo "$step: $outcome after $((SECONDS - started)) s"
done
find bench/results -type f -newer "$before" -exec cp -t "$folder" {} +
rm -f "$before"
echo "failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
