#!/bin/sh
# A worker in any shell: ./worker.sh TOPIC COMMAND [ARGUMENT...] runs the command for each job of the topic.
# It reads the payload and prints the result, both JSON; if it ends with another status than 0, it is tried again.
set -u
topic=$1 && shift
url=${QUEUE_URL:-http://127.0.0.1:8420} lease=${QUEUE_LEASE:-60} name=${QUEUE_WORKER:-shell-$$}
tab=$(printf '\t') token='' poll='' job='' heart=''
dir=$(mktemp -d) || exit 1
# In a file, so that the list of processes does not show it.
printf '%s' "${QUEUE_KEY:+header = \"Authorization: Bearer $QUEUE_KEY\"}" >"$dir/key"

post() { # PATH, and the body on standard input
    exec curl --silent --show-error --fail --retry 5 --retry-connrefused --max-time 100 --config "$dir/key" \
        --header 'Content-Type: application/json' --data-binary @- "$url$1"
}

leave() { # What runs is stopped, and its job given back: refused, and rightly, if its end was told just before.
    kill $poll $job $heart 2>/dev/null
    # An answer that came at the last moment holds a job, too; without one, whoever asks next must not meet this poll.
    [ -z "$poll" ] || { wait $poll; read -r token rest <"$dir/claimed"; } 2>/dev/null
    [ -z "$token" ] || : | post "/v1/leases/$token/release" 2>/dev/null
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 0' INT TERM

count=0
while :; do
    # The same request again, by curl or after a pause, brings the jobs of an answer that got lost.
    printf '{"worker": "%s", "wait": 30, "lease": %s, "request_id": "%s"}' "$name" "$lease" $count \
        | post "/v1/topics/$topic/claim:lines" >"$dir/claimed" & poll=$!
    wait $poll || { sleep 1; continue; }
    poll='' count=$((count + 1)) && IFS=$tab read -r token id attempt payload <"$dir/claimed" || continue
    export JOB_ID="$id" JOB_ATTEMPT="$attempt"
    printf '%s\n' "$payload" | "$@" >"$dir/result" & job=$!
    # An answer that says no (curl's 22), such as 409 for a lease that was lost, stops the command.
    (while sleep $((lease / 3)) && kill -0 $$; do
        printf '{"lease": %s}' "$lease" | post "/v1/leases/$token/extend" || [ $? -ne 22 ] || kill $job
    done) >/dev/null 2>&1 & heart=$!
    wait $job && status=0 || status=$?
    kill $heart && job='' heart=''
    failure="{\"error\": {\"type\": \"exit\", \"message\": \"status $status\"}}"
    if [ $status -eq 0 ]; then
        [ -s "$dir/result" ] || echo null >"$dir/result"
        { printf '{"result": ' && cat "$dir/result" && printf '}'; } | post "/v1/leases/$token/ack" && token=''
        failure='{"error": {"type": "result", "message": "it was not accepted"}}'
    fi
    [ -z "$token" ] || printf '%s' "$failure" | post "/v1/leases/$token/retry"
    token=''
done >/dev/null
