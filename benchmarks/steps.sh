# Several benchmarks in one sitting on a card: each with a limit, a log and its seconds, whatever happens to the others.
#
#     . benchmarks/steps.sh /tmp/found
#     step overhead 60 python3 -m benchmarks.overhead --devices cuda --out $FOUND/overhead.json
#     pack found.tar.xz
#
# python3 is one that has torch; packages in folders may be added to PYTHONPATH before.
FOUND=${1:-/tmp/found}
mkdir -p "$FOUND"
export PYTHONPATH=src:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

step() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 began=$SECONDS code=0
    shift 2
    # Told to stop as by Ctrl-C, so that what is known by then is written.
    timeout -s INT -k 10 "$limit" "$@" > "$FOUND/$name.log" 2>&1 || code=$?
    echo "$name: exit code $code after $((SECONDS - began)) s" | tee -a "$FOUND/steps.txt"
    tail -n 12 "$FOUND/$name.log" | cut -c1-200
}

pack() { # FILE
    tar -C "$(dirname "$FOUND")" -cJf "$1" "$(basename "$FOUND")"
}
