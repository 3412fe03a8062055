#!/bin/sh
# Is every memory access of the splatting kernels valid, and is shared memory used without races?
#
#     PYTHONPATH=src OUT=folder sh benchmarks/splat_sanitizer.sh
#
# Runs the cases of the op under compute-sanitizer, first without it, so that the kernels are compiled and kept. The logs
# are splat_memcheck.log and splat_racecheck.log in $OUT. The exit code is 0 if both tools have found nothing.
set -u
PYTHON=${PYTHON:-python3}
OUT=${OUT:-.}
SECONDS_EACH=${SECONDS_EACH:-100}
MOST=${MOST:-500}

command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not on PATH" >&2; exit 2; }
$PYTHON -m benchmarks.splat_cases --most-splats "$MOST" >/dev/null || { echo "the cases fail without it" >&2; exit 2; }
# Without its cache torch asks the driver for every tensor, so that an access beyond one is seen.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
status=0
for tool in memcheck racecheck; do
    log=$OUT/splat_$tool.log
    # The Python bindings ask the driver for functions that it may not have: an error of theirs, and no access.
    [ $tool = memcheck ] && options="--report-api-errors no" || options=""
    timeout "$SECONDS_EACH" compute-sanitizer --tool $tool $options --target-processes all --error-exitcode 9 \
        "$PYTHON" -m benchmarks.splat_cases --most-splats "$MOST" >"$log" 2>&1
    code=$?
    echo "exit code $code" >>"$log"
    echo "$tool: exit code $code"
    tail -n 4 "$log"
    [ $code -eq 0 ] || status=1
done
exit $status
