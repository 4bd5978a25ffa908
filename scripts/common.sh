# Functions for the other scripts; sourced, not run.
# shellcheck shell=bash
#
# Each node has a directory $CLUSTER_DIR/<port> with `pid`, `log`, `nodes.conf` and its own copy of the configuration, which
# CONFIG REWRITE may change. $CLUSTER_DIR/base contains the first of the six ports; it is written when the cluster is complete.

set -euo pipefail
export LC_ALL=C

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLUSTER_DIR=${CLUSTER_DIR:-$ROOT/.cluster}
# Data of the sentinel group (scripts/sentinel-group).
GROUP_DIR=${GROUP_DIR:-$ROOT/.sentinel-group}
NODES=6

say() { printf '%s\n' "$*"; }

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# The directory with the Redis and Valkey servers for comparison (scripts/install-peers).
peers_folder() {
    printf '%s\n' "${PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/redoubt/peers}"
}

# The first port: PORT, or that of the existing cluster, or 7000.
base_port() {
    local port=${PORT:-}
    if [[ -z $port && -f $CLUSTER_DIR/base ]]; then port=$(<"$CLUSTER_DIR/base"); fi
    port=${port:-7000}
    if [[ ! $port =~ ^[0-9]{4,5}$ ]] || ((port < 1024 || port > 55530)); then
        die "PORT=$port: name a port between 1024 and 55530; the bus uses the port 10000 above it."
    fi
    printf '%s\n' "$port"
}

ports() {
    local base=$1 i
    for ((i = 0; i < NODES; i++)); do printf '%s\n' $((base + i)); done
}

# Fails unless a cluster exists.
need_cluster() {
    [[ -f $CLUSTER_DIR/base ]] || die "There is no cluster. Start one with: make up"
}

# Whether the sentinel group exists (make up-sentinel).
group_stands() { [[ -f $GROUP_DIR/base ]]; }

# Whether the node on port $1 is running. A pid may be reused by another process, so the working directory must match, too.
alive() {
    local pid
    pid=$(pid_of "$1") || return 1
    kill -0 "$pid" 2>/dev/null && [[ $(readlink "/proc/$pid/cwd") == "$(realpath "$CLUSTER_DIR/$1")" ]]
}

pid_of() {
    [[ -f $CLUSTER_DIR/$1/pid ]] && printf '%s\n' "$(<"$CLUSTER_DIR/$1/pid")"
}

listening() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Sends a command to the node on port $1 and prints the reply, one line per array element. Fails on an error reply, which it
# prints, and if the node does not respond. It uses only bash, so that `make up` does not need redis-cli.
ask() {
    local port=$1 fd status=0
    shift
    { exec {fd}<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 1
    if printf '%s\r\n' "$*" >&"$fd"; then read_reply "$fd" || status=$?; else status=1; fi
    exec {fd}>&-
    return "$status"
}

read_reply() {
    local fd=$1 line body i
    IFS= read -r -t 10 -u "$fd" line || return 1
    line=${line%$'\r'}
    case $line in
    '+'* | ':'*) printf '%s\n' "${line:1}" ;;
    '$-1' | '*-1') printf '(nil)\n' ;;
    '$'*)
        body=
        if ((${line:1} > 0)); then IFS= read -r -t 10 -N "${line:1}" -u "$fd" body || return 1; fi
        IFS= read -r -t 10 -u "$fd" _ || return 1
        printf '%s\n' "$body"
        ;;
    '*'*) for ((i = 0; i < ${line:1}; i++)); do read_reply "$fd" || return 1; done ;;
    *)
        printf '%s\n' "$line"
        return 1
        ;;
    esac
}

# One field of CLUSTER INFO or INFO: field PORT NAME COMMAND...
field() {
    local port=$1 name=$2
    shift 2
    ask "$port" "$@" 2>/dev/null | tr -d '\r' | sed -n "s/^$name://p"
}

# wait_for SECONDS COMMAND...: repeats the command until it succeeds; fails after the timeout.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

answers() { [[ $(ask "$1" PING 2>/dev/null) == PONG ]]; }

cluster_ok() { [[ $(field "$1" cluster_state CLUSTER INFO) == ok ]]; }

# The server to start. REDOUBT names another binary, such as redis-server. Only a binary called redoubt gets the
# subcommand `server`.
server_command() {
    local binary=${REDOUBT:-$ROOT/target/release/redoubt}
    command -v "$binary" >/dev/null || die "Server $binary not found. Build it with: make build"
    # Absolute, since nodes run in their own directories. Links are not resolved, since the name selects the behaviour.
    binary=$(realpath -s "$(command -v "$binary")")
    if [[ ${binary##*/} == redoubt* ]]; then
        printf '%s\0server\0' "$binary"
    else
        printf '%s\0' "$binary"
    fi
}

# Starts the node on port $1 with configuration file $2 and further options, and waits until it responds.
start_node() {
    local port=$1 config=$2 dir=$CLUSTER_DIR/$1
    shift 2
    local -a server
    mapfile -d '' -t server < <(server_command)
    ((${#server[@]})) || exit 1
    mkdir -p "$dir"
    (
        cd "$dir"
        # A new session, so that Ctrl-C in the terminal does not stop the node.
        setsid "${server[@]}" "$config" --port "$port" "$@" </dev/null >>log 2>&1 &
        printf '%s\n' $! >pid
    )
    wait_for 20 answers "$port" || {
        tail -n 5 "$dir/log" >&2
        die "Node $port did not start; the lines above are the end of $dir/log."
    }
}

# The configuration file of node $1 (from 0) on port $2. It is a copy, since the server may rewrite it.
config_of() {
    local copy=$CLUSTER_DIR/$2/redis.conf
    if [[ ! -f $copy ]]; then
        mkdir -p "${copy%/*}"
        cp "$ROOT/cluster-configs/$((7000 + $1)).conf" "$copy"
    fi
    printf '%s\n' "$copy"
}

# Stops the node on port $1 with signal $2 and waits for its end.
stop_node() {
    local pid
    alive "$1" || return 0
    pid=$(pid_of "$1")
    kill -s "$2" "$pid" 2>/dev/null || true
    wait_for 20 gone "$pid" || kill -s KILL "$pid" 2>/dev/null || true
    rm -f "$CLUSTER_DIR/$1/pid"
}

# Whether the process has ended. A zombie still has its pid, but its threads have no working directory.
gone() {
    local folder
    for folder in "/proc/$1/task/"*/cwd; do
        [[ ! -e $folder ]] || return 1
    done
}

# The first node that responds.
any_node() {
    local port
    for port in $(ports "$1"); do
        if answers "$port"; then
            printf '%s\n' "$port"
            return
        fi
    done
    return 1
}

# NODE, after checking that it is one of the six ports.
named_node() {
    if [[ ! -f $CLUSTER_DIR/base ]] && group_stands; then
        local first
        first=$(<"$GROUP_DIR/base")
        [[ -n ${NODE:-} ]] || die "Set NODE, for example: make $1 NODE=$first"
        die "NODE=$NODE is not in the sentinel group: $(ports "$first" | tr '\n' ' ')"
    fi
    need_cluster
    local node=${NODE:-} base
    base=$(PORT='' base_port)
    [[ -n $node ]] || die "Set NODE, for example: make $1 NODE=$base"
    ports "$base" | grep -qx -- "$node" ||
        die "NODE=$node is not one of this cluster's nodes: $(ports "$base" | tr '\n' ' ')"
    printf '%s\n' "$node"
}
