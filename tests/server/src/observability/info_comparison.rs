//! Compares INFO with Valkey field by field: the same fields with the same formats, and equal values after equal
//! commands.

use std::collections::BTreeMap;

use harness::{Connection, Node, Program, Reply, eventually};

use super::info::OMITTED_FIELDS;

type InfoFields = BTreeMap<String, String>;

/// Fields whose format differs from Valkey's, each with the reason.
const DIFFERENT_FORMATS: &[(&str, &str)] = &[
    ("monotonic_clock", "the name of the clock source"),
    ("redis_build_id", "builds have no numeric id"),
    ("engine_0", "the Lua engine is built in, not a module"),
];

/// Fields that must have equal values on both servers after the scenario.
const EQUAL_FIELDS: &str = "redis_git_sha1 server_mode os arch_bits multiplexing_api process_supervised uptime_in_days hz \
    configured_hz config_file io_threads_active availability_zone tls_server_cert_serial \
    tls_server_cert_expires_in_seconds tls_client_cert_serial tls_client_cert_expires_in_seconds \
    tls_ca_cert_serial tls_ca_cert_expires_in_seconds connected_clients cluster_connections maxclients \
    blocked_clients tracking_clients pubsub_clients watching_clients clients_in_timeout_table \
    total_watched_keys total_blocking_keys total_blocking_keys_on_nokey paused_reason paused_actions \
    total_system_memory total_system_memory_human number_of_cached_scripts number_of_functions \
    number_of_libraries maxmemory maxmemory_human maxmemory_policy mem_cluster_links \
    mem_overhead_db_hashtable_rehashing active_defrag_running lazyfree_pending_objects loading async_loading \
    current_cow_peak current_cow_size current_cow_size_age current_fork_perc current_save_keys_processed \
    current_save_keys_total rdb_changes_since_last_save rdb_bgsave_in_progress rdb_last_bgsave_status \
    rdb_current_bgsave_time_sec rdb_saves rdb_last_load_keys_expired rdb_last_load_keys_loaded aof_enabled \
    aof_rewrite_in_progress aof_rewrite_scheduled aof_current_rewrite_time_sec aof_last_bgrewrite_status \
    aof_rewrites aof_rewrites_consecutive_failures aof_last_write_status aof_pending_rewrite \
    aof_buffer_length aof_pending_bio_fsync aof_delayed_fsync module_fork_in_progress \
    module_fork_last_cow_size slot_migration_fork_in_progress rejected_connections sync_full sync_partial_ok \
    sync_partial_err expired_keys expired_fields expired_time_cap_reached_count evicted_keys evicted_clients \
    evicted_scripts total_eviction_exceeded_time current_eviction_exceeded_time keyspace_misses \
    pubsub_channels pubsub_patterns pubsubshard_channels migrate_cached_sockets slave_expires_tracked_keys \
    active_defrag_hits active_defrag_misses active_defrag_key_hits active_defrag_key_misses \
    total_active_defrag_time current_active_defrag_time tracking_total_keys tracking_total_items \
    tracking_total_prefixes unexpected_error_replies total_error_replies dump_payload_sanitizations \
    io_threaded_reads_processed io_threaded_writes_processed client_query_buffer_limit_disconnections \
    client_output_buffer_limit_disconnections acl_access_denied_auth acl_access_denied_cmd \
    acl_access_denied_key acl_access_denied_channel acl_access_denied_tls_cert acl_access_denied_db role \
    connected_slaves replicas_waiting_psync master_failover_state master_replid2 second_repl_offset \
    repl_backlog_active repl_backlog_size cluster_enabled engines_count errorstat_ERR errorstat_NOPERM \
    errorstat_WRONGTYPE errorstat_WRONGPASS";

/// Numeric fields with the minimum and maximum (both inclusive) for both servers.
const ACCEPTED_RANGES: &[(&str, i64, i64)] = &[
    ("uptime_in_seconds", 0, 300),
    ("clients_hz", 1, 10),
    ("paused_timeout_milliseconds", 1, 3_600_000),
    ("used_memory", 500_000, 20_000_000),
    ("used_memory_rss", 5_000_000, 200_000_000),
    ("used_memory_scripts", 100, 10_000),
    ("mem_clients_normal", 0, 1_000_000),
    ("rdb_last_bgsave_time_sec", 0, 60),
    ("aof_last_rewrite_time_sec", 0, 60),
    ("aof_base_size", 100, 2000),
    ("aof_current_size", 100, 4000),
    ("total_connections_received", 8, 10_000),
    ("total_commands_processed", 30, 100_000),
    ("total_net_input_bytes", 1000, 10_000_000),
    ("total_net_output_bytes", 1000, 100_000_000),
    ("total_net_repl_output_bytes", 400, 100_000),
    ("total_forks", 2, 4),
    ("latest_fork_usec", 1, 10_000_000),
    ("keyspace_hits", 2, 8),
    ("total_reads_processed", 30, 100_000),
    ("total_writes_processed", 20, 100_000),
    ("eventloop_cycles", 30, 1_000_000),
    ("eventloop_duration_sum", 100, 100_000_000),
    ("eventloop_duration_cmd_sum", 10, 100_000_000),
    ("master_repl_offset", 200, 5000),
    ("repl_backlog_histlen", 200, 5000),
    ("repl_backlog_first_byte_offset", 1, 2),
];

/// The format of a value, on which programs that parse INFO rely.
#[derive(Debug, PartialEq, Eq)]
enum ValueFormat {
    Empty,
    Integer,
    Fraction,
    Percent,
    HumanReadable,
    Pairs(Vec<String>),
    Name,
}

fn value_format(value: &str) -> ValueFormat {
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let suffixed =
        |units: &str| value.ends_with(|unit| units.contains(unit)) && is_number(&value[..value.len() - 1]);
    match value {
        "" => ValueFormat::Empty,
        _ if value.parse::<i64>().is_ok() => ValueFormat::Integer,
        _ if is_number(value) => ValueFormat::Fraction,
        _ if suffixed("%") => ValueFormat::Percent,
        _ if suffixed("BKMGT") => ValueFormat::HumanReadable,
        _ if value.contains('=') => {
            let names = value.split(',').map(|pair| pair.split('=').next().unwrap_or_default().to_owned());
            ValueFormat::Pairs(names.collect())
        }
        _ => ValueFormat::Name,
    }
}

fn info_fields(node: &Node) -> InfoFields {
    let text = node.run("INFO everything").text();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Opens clients that block, subscribe, watch and track keys until they are dropped.
fn open_waiting_clients(node: &Node) -> Vec<Connection> {
    let mut clients = Vec::new();
    for (before, last) in [
        (&["PING"][..], "BLPOP nothing 0"),
        (&["XGROUP CREATE st g $ MKSTREAM"], "XREADGROUP GROUP g c BLOCK 0 STREAMS st >"),
        (&["PING"], "SUBSCRIBE channel"),
        (&["PING"], "PSUBSCRIBE p*"),
        (&["PING"], "SSUBSCRIBE shard"),
        (&["WATCH a b"], "PING"),
        (&["HELLO 3", "CLIENT TRACKING ON"], "GET a"),
        (&["HELLO 3", "CLIENT TRACKING ON BCAST PREFIX zz"], "PING"),
    ] {
        let mut client = node.connect();
        before.iter().for_each(|line| drop(client.call_line(line)));
        client.send(&last.split(' ').collect::<Vec<_>>()).expect("it reads");
        clients.push(client);
    }
    clients
}

fn wait_for_field(node: &Node, field: &str, value: &str) {
    eventually(&format!("{field} is {value}"), || {
        (node.info("everything", field).as_deref() == Some(value)).then_some(())
    });
}

/// Runs commands that cover expiry, failing commands, saving, AOF rewriting, replication and blocked clients.
fn run_scenario(node: &Node, replica: &Node) -> Vec<Connection> {
    wait_for_field(replica, "master_link_status", "up");
    let mut client = node.connect();
    for line in [
        "ACL SETUSER weak on nopass ~a +get",
        "SET a 1",
        "GET a",
        "GET nosuch",
        "SET soon x PX 1",
        "HSET h f v g w",
        "HEXPIRE h 1000 FIELDS 1 f",
        "HSET h2 f v",
        "HPEXPIRE h2 1 FIELDS 1 f",
        "LPUSH l 1",
        "INCR l",
        "NOSUCH",
        "GET",
        "SET t 1 EX 1000",
        "AUTH nobody x",
        "EVAL return(1) 0",
        "BGSAVE",
    ] {
        client.call_line(line);
    }
    for field in ["expired_keys", "expired_fields", "rdb_saves"] {
        wait_for_field(node, field, "1");
    }
    let mut weak = node.connect();
    for line in ["AUTH weak x", "SET a 1", "GET b"] {
        weak.call_line(line);
    }
    client.call_line("CONFIG SET appendonly yes").expect_ok();
    wait_for_field(node, "aof_rewrites", "1");
    wait_for_field(node, "aof_rewrite_in_progress", "0");
    client.call_line("SET z 1").expect_ok();
    client.call_line("BGREWRITEAOF");
    wait_for_field(node, "aof_rewrites", "2");
    wait_for_field(node, "aof_rewrite_in_progress", "0");
    assert_eq!(client.call_line("WAIT 1 5000"), Reply::Int(1));
    client.call_line("WAITAOF 1 0 5000");
    let clients = open_waiting_clients(node);
    wait_for_field(node, "blocked_clients", "2");
    wait_for_field(node, "pubsub_clients", "3");
    wait_for_field(node, "tracking_total_keys", "1");
    drop((weak, client));
    // The expected number includes the connection that runs INFO.
    wait_for_field(node, "connected_clients", "9");
    node.run("CLIENT PAUSE 3600000 WRITE").expect_ok();
    clients
}

fn start_master_and_replica(program: &Program) -> (Node, Node) {
    let options = "--save  --io-threads 1 --repl-diskless-sync-delay 0";
    let master = Node::start(program, options);
    let replica = Node::start(program, &format!("{options} --replicaof 127.0.0.1 {}", master.port));
    (master, replica)
}

/// Whether the field counts commands, including those that the harness itself sends.
fn is_command_statistic(name: &str) -> bool {
    name.starts_with("cmdstat_") || name.starts_with("latency_percentiles_usec_")
}

fn find_differences(ours: &InfoFields, theirs: &InfoFields) -> Vec<String> {
    let mut wrong = Vec::new();
    let listed = |list: &[(&str, &str)], name: &str| list.iter().any(|(known, _)| *known == name);
    for (name, value) in theirs.iter().filter(|(name, _)| !is_command_statistic(name)) {
        match ours.get(name) {
            None if listed(OMITTED_FIELDS, name) => {}
            None => wrong.push(format!("{name} is missing, {value} in Valkey")),
            Some(own) if listed(OMITTED_FIELDS, name) => {
                wrong.push(format!("{name} is listed as omitted but present: {own}"));
            }
            Some(own) if value_format(own) != value_format(value) && !listed(DIFFERENT_FORMATS, name) => {
                wrong.push(format!("{name} has another format: {own} in Redoubt, {value} in Valkey"));
            }
            Some(_) => {}
        }
    }
    for name in EQUAL_FIELDS.split_whitespace() {
        let values = [ours, theirs].map(|fields| fields.get(name).map_or("missing", String::as_str));
        if values[0] != values[1] {
            wrong.push(format!("{name} is {} in Redoubt and {} in Valkey", values[0], values[1]));
        }
    }
    for (name, least, most) in ACCEPTED_RANGES {
        for (server, fields) in [("Redoubt", ours), ("Valkey", theirs)] {
            let value = fields.get(*name).and_then(|value| value.parse::<i64>().ok());
            if !value.is_some_and(|value| (*least..=*most).contains(&value)) {
                wrong.push(format!("{name} is {value:?} in {server}, not {least} to {most}"));
            }
        }
    }
    wrong
}

#[test]
fn master_info_matches_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let (ours, theirs) = (start_master_and_replica(&Program::redoubt()), start_master_and_replica(&valkey));
    let _clients = (run_scenario(&ours.0, &ours.1), run_scenario(&theirs.0, &theirs.1));
    let (own, other) = (info_fields(&ours.0), info_fields(&theirs.0));
    let mut wrong = find_differences(&own, &other);
    let of_keys = |fields: &InfoFields| {
        let line = fields["db0"].clone();
        line.split(',').filter(|pair| !pair.starts_with("avg_ttl")).map(str::to_owned).collect::<Vec<_>>()
    };
    if of_keys(&own) != of_keys(&other) {
        wrong.push(format!("db0 is {} in Redoubt and {} in Valkey", own["db0"], other["db0"]));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The test compares the fields that only a replica has.
#[test]
fn replica_info_matches_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let (ours, theirs) = (start_master_and_replica(&Program::redoubt()), start_master_and_replica(&valkey));
    for (master, replica) in [&ours, &theirs] {
        wait_for_field(replica, "master_link_status", "up");
        let mut client = master.connect();
        client.call_line("SET a 1").expect_ok();
        assert_eq!(client.call_line("WAIT 1 5000"), Reply::Int(1));
    }
    let shown = |replica: &Node| -> InfoFields {
        let text = replica.run("INFO replication").text();
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    };
    let (own, other) = (shown(&ours.1), shown(&theirs.1));
    let mut wrong = Vec::new();
    for (name, value) in &other {
        match own.get(name) {
            None => wrong.push(format!("{name} is missing, {value} in Valkey")),
            Some(own) if value_format(own) != value_format(value) => {
                wrong.push(format!("{name}: {own} in Redoubt, {value} in Valkey"));
            }
            Some(_) => {}
        }
    }
    for name in "role master_host master_link_status master_sync_in_progress slave_priority slave_read_only \
                 replica_announced connected_slaves master_failover_state repl_backlog_active repl_backlog_size"
        .split_whitespace()
    {
        if own.get(name) != other.get(name) {
            wrong.push(format!("{name} is {:?} in Redoubt and {:?} in Valkey", own.get(name), other.get(name)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
