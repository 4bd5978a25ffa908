# Shared by the scripts of the local cluster: sourced, never run.
# shellcheck shell=bash
#
# A node's files are in $CLUSTER_DIR/<port>/: `pid`, `log`, `nodes.conf`, and its copy of its configuration, into which
# CONFIG REWRITE writes. $CLUSTER_DIR/base holds the first of
# the six ports once the cluster has been created; without it, creation did not finish.

set -euo pipefail
export LC_ALL=C

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLUSTER_DIR=${CLUSTER_DIR:-$ROOT/.cluster}
# Where the group that sentinels watch has its data (scripts/sentinel-group).
GROUP_DIR=${GROUP_DIR:-$ROOT/.sentinel-group}
NODES=6

say() { printf '%s\n' "$*"; }

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Where the servers that tests and measurements compare with lie (scripts/install-peers).
peers_folder() {
    printf '%s\n' "${PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/redoubt/peers}"
}

# The first port: what the caller named, what the standing cluster has, or 7000.
base_port() {
    local port=${PORT:-}
    if [[ -z $port && -f $CLUSTER_DIR/base ]]; then port=$(<"$CLUSTER_DIR/base"); fi
    port=${port:-7000}
    if [[ ! $port =~ ^[0-9]{4,5}$ ]] || ((port < 1024 || port > 55530)); then
        die "PORT=$port: name a port between 1024 and 55530; the bus needs the port 10000 above it."
    fi
    printf '%s\n' "$port"
}

ports() {
    local base=$1 i
    for ((i = 0; i < NODES; i++)); do printf '%s\n' $((base + i)); done
}

# The one command that cannot be done without: a cluster that stands.
need_cluster() {
    [[ -f $CLUSTER_DIR/base ]] || die "No cluster stands here. Start one with: make up"
}

# Whether the group that sentinels watch stands here (make up-sentinel).
group_stands() { [[ -f $GROUP_DIR/base ]]; }

# Whether the process of the node on $1 lives. A pid file can outlive its process and the number be given to
# another, so the process must also have been started in the node's folder.
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

# Sends one command to the node on port $1 and prints its reply, arrays a line per element. Fails on an error
# reply (which it prints) and when nothing answers. Needs nothing but bash, so that `make up` does not either.
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

# wait_for SECONDS COMMAND...: until the command succeeds; fails when the time is over.
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

# The server to start. REDOUBT names another binary (`REDOUBT=redis-server make up` compares); a binary that
# is not called redoubt is started without the `server` subcommand.
server_command() {
    local binary=${REDOUBT:-$ROOT/target/release/redoubt}
    command -v "$binary" >/dev/null || die "There is no server at $binary. Build it with: make build"
    # Absolute, as nodes run in folders of their own; a link keeps its name, by which it knows what it is.
    binary=$(realpath -s "$(command -v "$binary")")
    if [[ ${binary##*/} == redoubt* ]]; then
        printf '%s\0server\0' "$binary"
    else
        printf '%s\0' "$binary"
    fi
}

# Starts the node on port $1 with configuration file $2 and the options that follow, and returns when it answers.
start_node() {
    local port=$1 config=$2 dir=$CLUSTER_DIR/$1
    shift 2
    local -a server
    mapfile -d '' -t server < <(server_command)
    ((${#server[@]})) || exit 1
    mkdir -p "$dir"
    (
        cd "$dir"
        # A session of its own, so that Ctrl-C in the terminal does not reach it.
        setsid "${server[@]}" "$config" --port "$port" "$@" </dev/null >>log 2>&1 &
        printf '%s\n' $! >pid
    )
    wait_for 20 answers "$port" || {
        tail -n 5 "$dir/log" >&2
        die "Node $port did not start; the lines above are the end of its log, $dir/log."
    }
}

# The configuration file of the I-th node (from 0), on port $2: a copy of the repository's, made when it is first asked
# for. What a server writes into its file is its own.
config_of() {
    local copy=$CLUSTER_DIR/$2/redis.conf
    if [[ ! -f $copy ]]; then
        mkdir -p "${copy%/*}"
        cp "$ROOT/cluster-configs/$((7000 + $1)).conf" "$copy"
    fi
    printf '%s\n' "$copy"
}

# Stops the node on port $1 with signal $2 and returns when its process is gone.
stop_node() {
    local pid
    alive "$1" || return 0
    pid=$(pid_of "$1")
    kill -s "$2" "$pid" 2>/dev/null || true
    wait_for 20 gone "$pid" || kill -s KILL "$pid" 2>/dev/null || true
    rm -f "$CLUSTER_DIR/$1/pid"
}

# Whether nothing of the process runs any more. A dead process that nobody has asked for yet (a zombie) still has its
# number, but none of its threads has a folder.
gone() {
    local folder
    for folder in "/proc/$1/task/"*/cwd; do
        [[ ! -e $folder ]] || return 1
    done
}

# The first node that answers, to ask about all.
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

# NODE=<port>, checked to be one of the six.
named_node() {
    if [[ ! -f $CLUSTER_DIR/base ]] && group_stands; then
        local first
        first=$(<"$GROUP_DIR/base")
        [[ -n ${NODE:-} ]] || die "Say which, for example: make $1 NODE=$first"
        die "NODE=$NODE is not one of the sentinel group's: $(ports "$first" | tr '\n' ' ')"
    fi
    need_cluster
    local node=${NODE:-} base
    base=$(PORT='' base_port)
    [[ -n $node ]] || die "Say which node, for example: make $1 NODE=$base"
    ports "$base" | grep -qx -- "$node" ||
        die "NODE=$node is not one of this cluster's nodes: $(ports "$base" | tr '\n' ' ')"
    printf '%s\n' "$node"
}
