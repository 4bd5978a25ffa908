use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{CommandLatency, ConfiguredLimits, FailoverMetrics, LatencyEvent, OutputLimit, SlowLog};

const EXAMPLE_INFO: &str = "# Server\r\nredis_version:7.4.0\r\nredis_mode:cluster\r\nos:Linux \"6\"\\1 x\r\n\
    server_time_usec:1700000100000000\r\nuptime_in_seconds:100\r\ntcp_port:7000\r\n\r\n# Memory\r\n\
    used_memory:1048576\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\nmem_fragmentation_ratio:1.25\r\n\
    # Persistence\r\nrdb_last_bgsave_status:ok\r\naof_last_write_status:err\r\nrdb_saves:2\r\n# Stats\r\n\
    total_commands_processed:123\r\nkeyspace_hits:7\r\neventloop_duration_sum:2500000\r\n# Replication\r\n\
    role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:7001\r\nmaster_link_status:up\r\n\
    master_last_io_seconds_ago:1\r\nmaster_sync_in_progress:0\r\nslave_repl_offset:42\r\n\
    slave_read_only:1\r\nslave0:ip=10.0.0.2,port=7002,state=online,offset=40,lag=1,type=replica\r\n# CPU\r\n\
    used_cpu_user:1.500000\r\n# Commandstats\r\ncmdstat_get:calls=3,usec=1500000,usec_per_call=0.50,\
    rejected_calls=1,failed_calls=2\r\ncmdstat_config|get:calls=1,usec=1,usec_per_call=1.00,\
    rejected_calls=0,failed_calls=0\r\n# Errorstats\r\nerrorstat_WRONGTYPE:count=4\r\n# Keyspace\r\n\
    db0:keys=10,expires=2,avg_ttl=1500,keys_with_volatile_items=1\r\n";

fn example_snapshot() -> MetricsSnapshot {
    MetricsSnapshot {
        info: EXAMPLE_INFO.to_owned(),
        cluster_info: "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_stats_messages_sent:9\r\n"
            .to_owned(),
        limits: ConfiguredLimits {
            max_clients: 10000,
            max_memory_bytes: 0,
            worker_threads: 2,
            output_limits: vec![OutputLimit {
                class: "pubsub",
                hard_limit: 32,
                soft_limit: 8,
                soft_limit_seconds: 60,
            }],
        },
        commands: vec![CommandLatency {
            command: "get",
            calls: 3,
            cumulative_counts: vec![(1, 1), (4, 3)],
            total_micros: 6.5,
            quantiles: vec![(0.5, 1.003), (0.999, 3.5)],
        }],
        slow_log: SlowLog { length: 2, newest_entry: Some((7, 0.25)) },
        latency_events: vec![LatencyEvent { name: "command", unix_secs: 1700000000, seconds: 0.5 }],
        not_ready_reasons: vec![("loading", false), ("master_link_down", true)],
        slots_served: Some(5461),
        failovers: Some(FailoverMetrics { recorded_count: 3, last_promotion_unix_secs: Some(1700000050.5) }),
    }
}

/// Parses scrape output into values by metric name with labels.
fn parse_samples(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect()
}

#[test]
fn metrics_have_redis_exporter_names() {
    let text = render(example_snapshot());
    let samples = parse_samples(&text);
    let table = [
        ("redis_up", "1"),
        ("redis_start_time_seconds", "1700000000"),
        ("redis_memory_used_bytes", "1048576"),
        ("redis_memory_max_bytes", "0"),
        ("redis_mem_fragmentation_ratio", "1.25"),
        ("redis_rdb_last_bgsave_status", "1"),
        ("redis_aof_last_write_status", "0"),
        ("redis_rdb_saves_total", "2"),
        ("redis_commands_processed_total", "123"),
        ("redis_keyspace_hits_total", "7"),
        ("redis_cpu_user_seconds_total", "1.5"),
        ("redis_db_keys{db=\"db0\"}", "10"),
        ("redis_db_keys_expiring{db=\"db0\"}", "2"),
        ("redis_db_avg_ttl_seconds{db=\"db0\"}", "1.5"),
        ("redis_commands_total{cmd=\"get\"}", "3"),
        ("redis_commands_duration_seconds_total{cmd=\"get\"}", "1.5"),
        ("redis_commands_rejected_calls_total{cmd=\"get\"}", "1"),
        ("redis_commands_failed_calls_total{cmd=\"get\"}", "2"),
        ("redis_commands_total{cmd=\"config|get\"}", "1"),
        ("redis_errors_total{err=\"WRONGTYPE\"}", "4"),
        ("redis_commands_latencies_usec_bucket{cmd=\"get\",le=\"1\"}", "1"),
        ("redis_commands_latencies_usec_bucket{cmd=\"get\",le=\"4\"}", "3"),
        ("redis_commands_latencies_usec_bucket{cmd=\"get\",le=\"+Inf\"}", "3"),
        ("redis_commands_latencies_usec_count{cmd=\"get\"}", "3"),
        ("redis_latency_percentiles_usec{cmd=\"get\",quantile=\"0.999\"}", "3.5"),
        ("redis_latency_percentiles_usec_count{cmd=\"get\"}", "3"),
        (
            "redis_connected_slave_offset_bytes{slave_ip=\"10.0.0.2\",slave_port=\"7002\",slave_state=\"online\"}",
            "40",
        ),
        (
            "redis_connected_slave_lag_seconds{slave_ip=\"10.0.0.2\",slave_port=\"7002\",slave_state=\"online\"}",
            "1",
        ),
        ("redis_master_link_up{master_host=\"10.0.0.1\",master_port=\"7001\"}", "1"),
        ("redis_slave_repl_offset{master_host=\"10.0.0.1\",master_port=\"7001\"}", "42"),
        ("redis_slave_info{master_host=\"10.0.0.1\",master_port=\"7001\",read_only=\"1\"}", "1"),
        ("redis_cluster_state", "1"),
        ("redis_cluster_slots_assigned", "16384"),
        ("redis_cluster_messages_sent_total", "9"),
        ("redis_config_maxclients", "10000"),
        ("redis_config_client_output_buffer_limit_bytes{class=\"pubsub\",limit=\"hard\"}", "32"),
        ("redis_config_client_output_buffer_limit_overcome_seconds{class=\"pubsub\",limit=\"soft\"}", "60"),
        ("redis_slowlog_length", "2"),
        ("redis_slowlog_last_id", "7"),
        ("redis_last_slow_execution_duration_seconds", "0.25"),
        ("redis_latency_spike_last{event_name=\"command\"}", "1700000000"),
        ("redoubt_ready", "0"),
        ("redoubt_not_ready{reason=\"master_link_down\"}", "1"),
        ("redoubt_not_ready{reason=\"loading\"}", "0"),
        ("redoubt_slots_served", "5461"),
        ("redoubt_eventloop_busy_seconds_total", "2.5"),
    ];
    for (name, value) in table {
        assert_eq!(samples.get(name), Some(&value), "{name} in\n{text}");
    }
}

#[test]
fn instance_labels_are_escaped() {
    let text = render(example_snapshot());
    let line = text.lines().find(|line| line.starts_with("redis_instance_info{")).unwrap();
    assert!(line.contains("role=\"slave\"") && line.contains("os=\"Linux \\\"6\\\"\\\\1 x\""), "{line}");
    assert!(line.ends_with("} 1"), "{line}");
}

#[test]
fn each_family_has_one_type_line_and_no_duplicate_samples() {
    let text = render(example_snapshot());
    let types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let names: BTreeSet<&str> = types.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names.len(), types.len(), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let all: Vec<&str> = lines.filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{text}");
    for sample in all {
        let name = sample.split('{').next().unwrap();
        let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
        assert!(names.contains(name) || base.is_some_and(|base| names.contains(base)), "{sample}");
    }
}

#[test]
fn field_and_metric_names_are_unique() {
    let fields: BTreeSet<&str> = SIMPLE_FIELDS.iter().map(|(field, ..)| *field).collect();
    let names: BTreeSet<&str> = SIMPLE_FIELDS.iter().map(|(.., name)| *name).collect();
    assert_eq!((fields.len(), names.len()), (SIMPLE_FIELDS.len(), SIMPLE_FIELDS.len()));
}

#[test]
fn empty_snapshot_renders() {
    let text = render(MetricsSnapshot::default());
    assert!(text.contains("redis_up 1\n") && text.contains("redoubt_ready 1\n"), "{text}");
}
