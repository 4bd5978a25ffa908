use super::*;
use crate::lookup::Registry;
use crate::testing::Client;

/// What each state keeps from running, and whether scripts are asked about their calls: told once more, in words.
const STATES: &str = "
    ALL_PAUSED         waits    clients  all
    WRITES_PAUSED      waits    clients  write may-replicate
    SLOTS_HELD         waits    clients  write
    REDIRECTS          refused  clients  -
    CLUSTER_DOWN       refused  scripts  keys
    OUT_OF_MEMORY      refused  scripts  denyoom
    AOF_FAILED         refused  scripts  write
    MISCONF            refused  scripts  write
    NO_REPLICAS        refused  scripts  write
    READ_ONLY_REPLICA  refused  scripts  write
    MASTER_DOWN        refused  scripts  not-stale
    EMPTY_MASTER       refused  scripts  not-stale-nor-ping
    BUSY               refused  clients  not-allow-busy
    ASYNC_LOADING      refused  clients  no-async-loading
    LOADING            refused  clients  not-loading
    REPLICA            refused  clients  -
    MONITORED          refused  clients  -
    IMPORTING          refused  clients  -
";

fn is_one(class: &str, entry: &Registered) -> bool {
    let flags = entry.command.flags;
    match class {
        "all" => true,
        "-" => false,
        "keys" => !entry.command.keys.is_empty() && !flags.contains(Flags::PUBSUB),
        "write" => flags.contains(Flags::WRITE),
        "may-replicate" => flags.contains(Flags::MAY_REPLICATE),
        "denyoom" => flags.contains(Flags::DENYOOM),
        "no-async-loading" => flags.contains(Flags::NO_ASYNC_LOADING),
        "not-stale" => !flags.contains(Flags::STALE),
        "not-stale-nor-ping" => !flags.contains(Flags::STALE) && !is_one("while-listening", entry),
        "while-listening" => flags.contains(Flags::WHILE_LISTENING),
        "not-allow-busy" => !flags.contains(Flags::ALLOW_BUSY),
        "not-loading" => !flags.contains(Flags::LOADING),
        _ => panic!("{class}"),
    }
}

fn need(client: &Client, entry: &Registered) -> Need {
    let need = client.engine.need_of(&client.session, entry.command.flags, !entry.command.keys.is_empty());
    Need { is_slot_held: true, is_locked: true, ..need }
}

#[test]
fn every_state_says_of_every_command_what_becomes_of_it_for_every_caller() {
    let client = Client::new();
    // Who is revoked is asked of each client by itself.
    let mut states = Gate::all() - Gate::REVOKING;
    for line in STATES.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, becomes, asks, classes @ ..] = words.as_slice() else { panic!("{line}") };
        let state = Gate::from_name(name).expect("a state of the gate");
        states.remove(state);
        for entry in Registry::the().all() {
            let need = need(&client, entry);
            let concerned = classes.iter().any(|class| is_one(class, entry));
            let refused = Verdict::Refuse(state);
            let expected = |caller| match caller {
                Caller::Exec | Caller::Master => Verdict::Run,
                _ if !concerned => Verdict::Run,
                Caller::Client if *becomes == "waits" => Verdict::Wait,
                Caller::Client => refused,
                Caller::Script if *asks == "scripts" => refused,
                Caller::Script => Verdict::Run,
                Caller::Waiter => Verdict::Again,
            };
            for caller in [Caller::Client, Caller::Exec, Caller::Script, Caller::Waiter, Caller::Master] {
                let (name, verdict) = (&entry.full_name, admit(state, caller, &need));
                assert_eq!(verdict, expected(caller), "{state:?} {caller:?} {name}");
                assert_eq!(admit(Gate::empty(), caller, &need), Verdict::Run, "{caller:?} {name}");
            }
        }
    }
    assert_eq!(states, Gate::empty(), "each state is told of");
}

#[test]
fn what_is_more_than_a_flag_counts_too() {
    let client = Client::new();
    let entry = |name: &str| Registry::the().find(name.as_bytes()).expect("a command");
    let set = need(&client, entry("set"));
    let writes = Gate::MISCONF | Gate::AOF_FAILED | Gate::READ_ONLY_REPLICA;
    let admitted = |gate, caller, need: Need| admit(gate, caller, &need) == Verdict::Run;
    // A script that has written goes on writing, or half of what it does would be done.
    for gate in writes | Gate::OUT_OF_MEMORY | Gate::NO_REPLICAS {
        assert!(!admitted(gate, Caller::Script, set), "{gate:?}");
        assert!(admitted(gate, Caller::Script, Need { has_written: true, ..set }), "{gate:?}");
    }
    // A command that is queued waits for no pause, and takes memory.
    let get = need(&client, entry("get"));
    assert!(admitted(Gate::PAUSED, Caller::Client, Need { is_queued: true, ..get }));
    assert!(!admitted(Gate::OUT_OF_MEMORY, Caller::Client, Need { is_queued: true, ..get }));
    // In a cluster a key's slot says where it is written; once that is locked, the role does.
    let routed = Need { is_routed: true, ..set };
    assert!(admitted(Gate::READ_ONLY_REPLICA, Caller::Client, routed));
    assert!(!admitted(Gate::REPLICA, Caller::Client, routed));
    assert!(admitted(Gate::REPLICA, Caller::Client, Need { is_locked: false, ..routed }));
    assert!(!admitted(Gate::REDIRECTS, Caller::Client, Need { follows_master: true, ..set }));
    assert!(admitted(Gate::CLUSTER_DOWN, Caller::Client, Need { reads_when_down: true, ..get }));
    assert!(!admitted(Gate::CLUSTER_DOWN, Caller::Client, Need { reads_when_down: true, ..set }));
}

/// As in Valkey: nobody learns which commands there are before saying who it is.
#[test]
fn a_stranger_hears_noauth_before_anything_else() {
    let mut client = Client::new();
    client.require(b"secret");
    let noauth = "-NOAUTH Authentication required.";
    client.table(&[
        ("nosuch", noauth),
        ("get", noauth),
        ("config nosuch", noauth),
        ("debug nosuch", noauth),
        ("ping", noauth),
        ("auth", "-ERR wrong number of arguments for 'auth' command"),
        ("auth secret", "+OK"),
        ("nosuch", "-ERR unknown command 'nosuch', with args beginning with: "),
    ]);
}

/// Its connection is one to read from, as a replica's.
#[test]
fn a_client_in_monitor_touches_no_key() {
    let mut client = Client::new();
    client.wire("monitor");
    let refused = "-ERR Replica can't interact with the keyspace\r\n";
    for line in ["set k v", "get k", "eval \"return 1\" 0", "del k", "dbsize", "multi\nset k v\ndiscard"] {
        assert!(client.wire(line).contains(refused), "{line}");
    }
    assert!(client.wire("ping").contains("+PONG\r\n"));
    client.wire("reset");
    client.table(&[("get k", "$-1")]);
}
