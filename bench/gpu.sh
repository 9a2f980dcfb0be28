#!/usr/bin/env bash
# Everything that needs a card, within 8 minutes: tests marked cuda with opcheck of every op, every op against float64,
# the benchmark with packed training; results, page and pictures in $OUT, a short table at the end.
#
#     OUT=results bench/gpu.sh         on a machine with a CUDA device; needs neither installation nor network
#     OUT=results bench/gpu.sh --dry   every line of it but the card, on the CPU
#
# Needs torch, triton, numpy and pytest; pictures need matplotlib. A part that fails is named at the end and does not
# stop the others. Exit code 3 without a GPU, 1 where a part failed.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_WAIT_POLICY=PASSIVE PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
out=${OUT:-bench/results/gpu}
if [ "${1:-}" = --dry ]; then
    device=cpu sizes=tunnel budget=0.01 verified=(philox score) groups=("elimination training")
elif "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    device=cuda sizes=all budget=0.5 verified=()
    # A process each, so that an illegal access in one op does not end the others.
    groups=(attention training selective_scan "causal_conv1d hmm" "regression elimination score" single_head)
else
    echo "gpu.sh: torch sees no CUDA device; --dry runs it on the CPU" >&2
    exit 3
fi
mkdir -p "$out" || exit 2
parts=$(mktemp -d) log=$out/gpu.log failed=() limit=455
trap 'rm -rf "$parts"' EXIT
: >"$log"

# part NAME SECONDS COMMAND…: at most so long, and never past the limit of all; its output goes to the log.
part() {
    local name=$1 most=$2 left=$((limit - SECONDS))
    shift 2
    echo "gpu.sh: $name"
    echo "== $name" >>"$log"
    [ "$left" -gt 5 ] || { failed+=("$name (no time left)"); return; }
    timeout "$((most < left ? most : left))" "$@" >>"$log" 2>&1 || failed+=("$name (exit $?, see $log)")
}

part verify 75 "$python" -m bench.card verify --device "$device" --out "$out" ${verified[@]+"${verified[@]}"}
part tests 170 "$python" -m pytest -p no:cacheprovider tests/cuda -m cuda
for group in "${groups[@]}"; do
    # Its words are the ops.
    part "bench $group" 90 "$python" -m bench.card bench --device "$device" --sizes "$sizes" --budget "$budget" \
        --out "$parts/${group// /-}" $group
done
limit=480 # the table has its time whatever went before
part table 20 "$python" -m bench.card join --out "$out" "$parts"/*

sed -n '/^== table$/,$p' "$log" | tail -n +2
sed -n '/^== tests$/,/^== bench/p' "$log" | grep -E '(passed|skipped|failed).* in ' | tail -n 1
for name in ${failed[@]+"${failed[@]}"}; do echo "failed: $name"; done
[ ${#failed[@]} -eq 0 ]
