#!/usr/bin/env bash
# A worker made of bash and curl: takes events with given tags, runs a command with the payload on stdin, and reports
# how it went. Usage: curl_worker.sh URL TAGS COMMAND [ARGUMENT...]
#
#   examples/curl_worker.sh http://127.0.0.1:8484 email,notification ./send_mail
#
# TOKEN in the environment is sent along. ONCE=1 ends it when there is nothing left to do.
set -euo pipefail

url=$1 tags=$2
shift 2
worker="$(hostname):$$"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The token goes into a file that curl reads: arguments can be seen by everybody on the machine.
(umask 077 && printf 'header = "Authorization: Bearer %s"\n' "${TOKEN:-none}" >"$folder/curl")

api() { curl --silent --show-error --max-time 30 --config "$folder/curl" "$@"; }
report() { api --fail --output /dev/null -H 'Content-Type: application/json' --data "$2" "$url/events/$1"; }
text() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()[-2000:]))'; }

while true; do
    code=$(api --get --output "$folder/job" --write-out '%{http_code}' \
        --data-urlencode "tags=$tags" --data-urlencode "worker_id=$worker" "$url/events/subscribe") || code=000
    case $code in
    200) ;;
    204)
        [ -z "${ONCE:-}" ] || exit 0
        sleep 5
        continue
        ;;
    000 | 5*)
        sleep 5
        continue
        ;;
    *)
        cat "$folder/job" >&2
        exit 1
        ;;
    esac
    id=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])' <"$folder/job")
    python3 -c 'import json, sys; json.dump(json.load(sys.stdin)["payload"], sys.stdout)' <"$folder/job" >"$folder/payload"
    report "$id/start" "{\"worker_id\": \"$worker\"}"
    began=$(date +%s%N)
    exit=0
    "$@" <"$folder/payload" >"$folder/out" 2>"$folder/err" || exit=$?
    spent=$((($(date +%s%N) - began) / 1000000))
    common="\"worker_id\": \"$worker\", \"execution_time_ms\": $spent, \"status_code\": $exit"
    if [ "$exit" = 0 ]; then
        report "$id/complete" "{$common}"
    else
        # The last failure is answered with 400: the event is FAILED now, which is no trouble of the worker's.
        report "$id/fail" "{$common, \"error_message\": $(text <"$folder/err")}" || true
    fi
    echo "event $id: exit code $exit after $spent ms"
done
