use keyspace::Keyspace;

use super::*;
use crate::effects::NoLog;

/// For each flag: the commands that it stops, and whether it applies inside scripts. Restates the rules independently
/// of the implementation.
const RULE_TABLE: &str = "
    ALL_PAUSED         waits    clients  all
    WRITES_PAUSED      waits    clients  write may-replicate
    SLOT_WRITES_PAUSED waits    clients  write may-replicate
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

/// The command flags that admission depends on.
const RELEVANT_FLAGS: Flags = Flags::WRITE
    .union(Flags::MAY_REPLICATE)
    .union(Flags::DENYOOM)
    .union(Flags::NO_ASYNC_LOADING)
    .union(Flags::STALE)
    .union(Flags::WHILE_SUBSCRIBED)
    .union(Flags::ALLOW_BUSY)
    .union(Flags::LOADING)
    .union(Flags::PUBSUB);

/// Enumerates all combinations of command flags, with and without keys.
fn flag_combinations() -> impl Iterator<Item = (Flags, bool)> {
    let flags: Vec<Flags> = RELEVANT_FLAGS.iter().collect();
    (0..1 << flags.len()).flat_map(move |bits: usize| {
        let chosen = flags.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1);
        let chosen: Flags = chosen.map(|(_, flag)| *flag).collect();
        [(chosen, false), (chosen, true)]
    })
}

fn is_in_class(class: &str, flags: Flags, has_keys: bool) -> bool {
    match class {
        "all" => true,
        "-" => false,
        "keys" => has_keys && !flags.contains(Flags::PUBSUB),
        "write" => flags.contains(Flags::WRITE),
        "may-replicate" => flags.contains(Flags::MAY_REPLICATE),
        "denyoom" => flags.contains(Flags::DENYOOM),
        "no-async-loading" => flags.contains(Flags::NO_ASYNC_LOADING),
        "not-stale" => !flags.contains(Flags::STALE),
        "not-stale-nor-ping" => !flags.intersects(Flags::STALE | Flags::WHILE_SUBSCRIBED),
        "not-allow-busy" => !flags.contains(Flags::ALLOW_BUSY),
        "not-loading" => !flags.contains(Flags::LOADING),
        _ => panic!("{class}"),
    }
}

fn new_engine() -> Engine {
    Engine::new(acl::CommandCatalogue::default(), Keyspace::new(1, 1), None, Box::new(NoLog))
}

/// Returns the admission properties for a client's command.
fn client_admission_input(engine: &Engine, flags: Flags, has_keys: bool) -> AdmissionInput {
    let need = engine.admission_input(&Session::new(1, CommandOrigin::Client, true), flags, has_keys);
    AdmissionInput { has_paused_slot: true, is_slot_writable: true, ..need }
}

#[test]
fn admission_rules_match_table_for_every_caller() {
    let engine = new_engine();
    // Revocation is checked per client, and background execution decides nothing about admission.
    let mut states = NodeFlags::all() - NodeFlags::REVOKING - NodeFlags::BACKGROUND;
    for line in RULE_TABLE.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, becomes, asks, classes @ ..] = words.as_slice() else { panic!("{line}") };
        let state = NodeFlags::from_name(name).expect("a node flag");
        states.remove(state);
        for (flags, keys) in flag_combinations() {
            let need = client_admission_input(&engine, flags, keys);
            let concerned = classes.iter().any(|class| is_in_class(class, flags, keys));
            let refused = AdmissionVerdict::Refuse(state);
            let expected = |caller| match caller {
                Caller::Exec | Caller::Master => AdmissionVerdict::Run,
                Caller::SlotMigrationSource if concerned && *becomes == "waits" => AdmissionVerdict::Wait,
                Caller::SlotMigrationSource if state == NodeFlags::REPLICA => refused,
                Caller::SlotMigrationSource => AdmissionVerdict::Run,
                _ if !concerned => AdmissionVerdict::Run,
                Caller::Client if *becomes == "waits" => AdmissionVerdict::Wait,
                Caller::Client => refused,
                Caller::Script if *asks == "scripts" => refused,
                Caller::Script => AdmissionVerdict::Run,
                Caller::Waiter => AdmissionVerdict::Rerun,
            };
            for caller in [
                Caller::Client,
                Caller::Exec,
                Caller::Script,
                Caller::Waiter,
                Caller::Master,
                Caller::SlotMigrationSource,
            ] {
                let verdict = admit(state, caller, &need);
                assert_eq!(verdict, expected(caller), "{state:?} {caller:?} {flags:?} {keys}");
                assert_eq!(
                    admit(NodeFlags::empty(), caller, &need),
                    AdmissionVerdict::Run,
                    "{caller:?} {flags:?} {keys}"
                );
            }
        }
    }
    assert_eq!(states, NodeFlags::empty(), "each state is told of");
}

#[test]
fn queuing_routing_and_earlier_writes_affect_admission() {
    let engine = new_engine();
    let set = client_admission_input(&engine, Flags::WRITE | Flags::DENYOOM | Flags::FAST, true);
    let writes = NodeFlags::MISCONF | NodeFlags::AOF_FAILED | NodeFlags::READ_ONLY_REPLICA;
    let admitted = |gate, caller, need: AdmissionInput| admit(gate, caller, &need) == AdmissionVerdict::Run;
    // A script that has written must continue, or its changes would be half done.
    for gate in writes | NodeFlags::OUT_OF_MEMORY | NodeFlags::NO_REPLICAS {
        assert!(!admitted(gate, Caller::Script, set), "{gate:?}");
        assert!(admitted(gate, Caller::Script, AdmissionInput { has_written: true, ..set }), "{gate:?}");
    }
    // A queued command does not wait for a pause, and GET is not subject to the memory limit.
    let get = client_admission_input(&engine, Flags::READONLY | Flags::FAST, true);
    assert!(admitted(NodeFlags::PAUSED, Caller::Client, AdmissionInput { is_queued: true, ..get }));
    assert!(admitted(NodeFlags::OUT_OF_MEMORY, Caller::Client, AdmissionInput { is_queued: true, ..get }));
    // In cluster mode a write on a replica is redirected by its slot instead of being refused as READONLY. It is
    // refused only while the slot is still marked as this node's own.
    let routed = AdmissionInput { is_routed: true, ..set };
    assert!(admitted(NodeFlags::READ_ONLY_REPLICA, Caller::Client, routed));
    assert!(!admitted(NodeFlags::REPLICA, Caller::Client, routed));
    assert!(admitted(
        NodeFlags::REPLICA,
        Caller::Client,
        AdmissionInput { is_slot_writable: false, ..routed }
    ));
    let spublish = client_admission_input(&engine, Flags::PUBSUB | Flags::MAY_REPLICATE | Flags::FAST, true);
    assert!(admitted(NodeFlags::REPLICA, Caller::Client, AdmissionInput { is_routed: true, ..spublish }));
    let beside_a_write =
        client_admission_input(&engine, Flags::PUBSUB | Flags::MAY_REPLICATE | Flags::WRITE, true);
    assert!(!admitted(
        NodeFlags::REPLICA,
        Caller::Client,
        AdmissionInput { is_routed: true, ..beside_a_write }
    ));
    assert!(!admitted(NodeFlags::REDIRECTS, Caller::Client, AdmissionInput { wants_redirect: true, ..set }));
    assert!(admitted(
        NodeFlags::CLUSTER_DOWN,
        Caller::Client,
        AdmissionInput { may_read_when_down: true, ..get }
    ));
    assert!(!admitted(
        NodeFlags::CLUSTER_DOWN,
        Caller::Client,
        AdmissionInput { may_read_when_down: true, ..set }
    ));
}
