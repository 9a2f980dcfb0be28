#!/usr/bin/env bash
# Everything that needs a card, within 8 minutes: tests marked cuda, the benchmark with packed training, results in $OUT.
#
#     OUT=results bench/gpu.sh         on a machine with a CUDA device; needs neither installation nor network
#     OUT=results bench/gpu.sh --dry   every line of it but the card, on the CPU
#
# A part that fails is named at the end and does not stop the others. Exit code 3 without a GPU, 1 where a part failed.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_WAIT_POLICY=PASSIVE
python=${PYTHON:-python3}
out=${OUT:-bench/results/gpu}
dry=${1:-}
if [ "$dry" = --dry ]; then
    device=cpu sizes=tunnel budget=0.01 tests="tests/cuda --collect-only" ops=(hmm elimination)
elif "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    device=cuda sizes=all budget=0.5 tests="tests/cuda -m cuda" ops=()
else
    echo "gpu.sh: torch sees no CUDA device; --dry runs it on the CPU" >&2
    exit 3
fi
mkdir -p "$out" || exit 2
failed=()

# part NAME SECONDS COMMAND…: its output goes to $out/NAME.log
part() {
    local name=$1 limit=$2
    shift 2
    echo "gpu.sh: $name"
    timeout "$limit" "$@" >"$out/$name.log" 2>&1 || failed+=("$name (exit $?, see $out/$name.log)")
}

# $tests is two words on purpose.
part tests 200 "$python" -m pytest -q $tests
part bench 270 "$python" -m bayesattn_fast bench ${ops[@]+"${ops[@]}"} --device "$device" --sizes "$sizes" \
    --budget "$budget" --save "$out"

grep -v '^\[' "$out/bench.log" | tail -n 60
grep -v "^$" "$out/tests.log" | tail -n 1
for name in ${failed[@]+"${failed[@]}"}; do echo "failed: $name"; done
[ ${#failed[@]} -eq 0 ]
