# A real cluster for a bash test. Source it, then:
#
#   cluster_start MODELS [UP-ARGUMENT...]   `ingot up --detach` in a run directory of its own, ports chosen by the system;
#                                           exports RUN_DIR, ADDRESS (gRPC), HTTP_ADDRESS and CA (empty if plaintext)
#   cluster_stop                            `ingot down`, and the directories go; also when the script exits
#   cluster_pid ROLE INDEX                  prints the pid
#
# cluster_start ends the script with what `ingot up` said if it fails. The programs are those of $INGOT_BIN.
: "${INGOT_BIN:?the directory of the ingot programs}"

cluster_field() {
    "$INGOT_BIN/ingot" status --run-dir "$RUN_DIR" --json | python3 -c '
import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1:]:
    value = value[key]
print("" if value is None else value)' "$@"
}

cluster_start() {
    local models=$1 base
    shift
    base=$(mktemp -d "${TMPDIR:-/tmp}/ingot-sh.XXXXXX")
    RUN_DIR=$base/run
    export RUN_DIR
    trap cluster_stop EXIT
    "$INGOT_BIN/ingot" up --run-dir "$RUN_DIR" --models "$models" --grpc 127.0.0.1:0 --http 127.0.0.1:0 --detach "$@" ||
        exit 1
    ADDRESS=$(cluster_field addresses grpc)
    HTTP_ADDRESS=$(cluster_field addresses http)
    CA=$(cluster_field addresses ca)
    export ADDRESS HTTP_ADDRESS CA
}

cluster_stop() {
    [[ -n ${RUN_DIR:-} ]] || return 0
    "$INGOT_BIN/ingot" down --run-dir "$RUN_DIR" >/dev/null || true
    rm -rf "${RUN_DIR%/run}"
    unset RUN_DIR
}

cluster_pid() {
    "$INGOT_BIN/ingot" status --run-dir "$RUN_DIR" --json | python3 -c '
import json, sys
role, index = sys.argv[1], int(sys.argv[2])
for process in json.load(sys.stdin)["processes"]:
    if (process["role"], process["index"]) == (role, index):
        print(process["pid"])' "$1" "$2"
}
