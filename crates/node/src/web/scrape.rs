//! Collects the metrics for a Prometheus scrape.

use config::keys;
use metrics::{
    CommandLatency, ConfiguredLimits, FailoverMetrics, LatencyEvent, MetricsSnapshot, OutputLimit, SlowLog,
};
use slot_routing::{Ownership, Slot};

use super::readiness::ReadinessBlocker;
use crate::commands::info::{DataAccess, render_sections};
use crate::server::Server;

/// The INFO sections whose fields become metrics.
const METRIC_SECTIONS: [&str; 11] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "commandstats",
    "errorstats",
    "cluster",
    "keyspace",
];

pub(super) fn collect_metrics(server: &Server) -> MetricsSnapshot {
    let sections = METRIC_SECTIONS.map(str::to_owned);
    MetricsSnapshot {
        info: render_sections(server, &sections, &mut DataAccess::Unlocked(&server.engine.keyspace)),
        cluster_info: collect_cluster_info(server),
        limits: collect_limits(server),
        commands: collect_command_latencies(server),
        slow_log: collect_slow_log(server),
        latency_events: collect_latency_events(server),
        not_ready_reasons: ReadinessBlocker::ALL
            .map(|hindrance| (hindrance.name(), hindrance.is_active(server)))
            .to_vec(),
        slots_served: server.engine.topology.as_ref().map(|topology| {
            let topology = topology.load();
            let served =
                |slot: &Slot| matches!(topology.ownership(*slot), Ownership::Local | Ownership::Migrating);
            Slot::all().filter(served).count()
        }),
        failovers: collect_failovers(server),
    }
}

pub(super) fn collect_cluster_info(server: &Server) -> String {
    let Some(cluster) = &server.cluster else { return String::new() };
    cluster.info_text(&cluster.view())
}

fn collect_limits(server: &Server) -> ConfiguredLimits {
    let values = server.config.values();
    let output = &values[keys::CLIENT_OUTPUT_BUFFER_LIMIT];
    let classes = [("normal", output.normal), ("slave", output.replica), ("pubsub", output.pubsub)];
    let of_class = |(class, limit): (&'static str, config::OutputLimit)| OutputLimit {
        class,
        hard_limit: limit.hard_limit,
        soft_limit: limit.soft_limit,
        soft_limit_seconds: limit.soft_duration.as_secs(),
    };
    ConfiguredLimits {
        max_clients: values[keys::MAXCLIENTS],
        max_memory_bytes: values[keys::MAXMEMORY],
        worker_threads: values[keys::IO_THREADS],
        output_limits: classes.map(of_class).to_vec(),
    }
}

/// Returns latency statistics of all commands that were called at least once.
pub(super) fn collect_command_latencies(server: &Server) -> Vec<CommandLatency> {
    let percents = server.config.get(keys::LATENCY_TRACKING_INFO_PERCENTILES);
    let totals = server.housekeeping.totals_since_reset();
    let all = ::commands::server_registry().commands().iter().zip(&totals.commands);
    let called = all.filter(|(_, total)| total.call_count > 0);
    called
        .map(|(entry, total)| {
            let times = server.engine.diagnostics.command_latency(entry.index);
            let quantile = |percent: &f64| (percent / 100.0, times.percentile(*percent) as f64 / 1000.0);
            let quantiles =
                if times.calls() == 0 { Vec::new() } else { percents.iter().map(quantile).collect() };
            CommandLatency {
                command: &entry.full_name,
                calls: total.call_count,
                cumulative_counts: times.cumulative_counts(),
                total_micros: total.total_nanos as f64 / 1000.0,
                quantiles,
            }
        })
        .collect()
}

fn collect_slow_log(server: &Server) -> SlowLog {
    let log = &server.engine.diagnostics.command_logs.slow_commands;
    let last = log.newest_entries(1).pop().map(|entry| (entry.id, entry.value as f64 / 1e6));
    SlowLog { length: log.count(), newest_entry: last }
}

fn collect_latency_events(server: &Server) -> Vec<LatencyEvent> {
    let events = server.engine.diagnostics.latency.events();
    let last = events.into_iter().filter_map(|(name, event)| Some((name, *event.samples.back()?)));
    last.map(|(name, (at, millis))| LatencyEvent { name, unix_secs: at, seconds: millis as f64 / 1000.0 })
        .collect()
}

fn collect_failovers(server: &Server) -> Option<FailoverMetrics> {
    let view = server.cluster.as_ref()?.view();
    let records = view.timeline().records();
    let replaced = |record: &gossip::FailoverRecord| record.replacement.map(|(.., at)| at.0);
    let last = view.timeline().records().filter_map(replaced).max();
    Some(FailoverMetrics {
        recorded_count: records.count(),
        last_promotion_unix_secs: last.map(|millis| millis as f64 / 1000.0),
    })
}
