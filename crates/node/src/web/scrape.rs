//! Collects the metrics for a scrape.

use config::keys;
use metrics::{CommandLatency, Failovers, LatencyEvent, Limits, OutputLimit, SlowLog, Snapshot};
use slot_routing::{Ownership, Slot};

use super::readiness::Hindrance;
use crate::commands::info::{Data, render};
use crate::server::Server;

/// The INFO sections that metrics are taken from.
const SECTIONS: [&str; 11] = [
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

/// Returns all current metrics.
pub(super) fn snapshot(server: &Server) -> Snapshot {
    let sections = SECTIONS.map(str::to_owned);
    Snapshot {
        info: render(server, &sections, &mut Data::Free(&server.engine.keyspace)),
        cluster_info: cluster_info(server),
        limits: limits(server),
        commands: commands(server),
        slow_log: slow_log(server),
        latency_events: latency_events(server),
        not_ready_reasons: Hindrance::ALL
            .map(|hindrance| (hindrance.name(), hindrance.holds(server)))
            .to_vec(),
        slots_served: server.engine.topology.as_ref().map(|topology| {
            let topology = topology.load();
            let served =
                |slot: &Slot| matches!(topology.ownership(*slot), Ownership::Mine | Ownership::Migrating);
            Slot::all().filter(served).count()
        }),
        failovers: failovers(server),
    }
}

pub(super) fn cluster_info(server: &Server) -> String {
    let Some(cluster) = &server.cluster else { return String::new() };
    let traffic = cluster.machine.traffic.so_far();
    cluster.machine.gossip.lock().info_text(&traffic)
}

fn limits(server: &Server) -> Limits {
    let values = server.config.values();
    let output = &values[keys::CLIENT_OUTPUT_BUFFER_LIMIT];
    let classes = [("normal", output.normal), ("slave", output.replica), ("pubsub", output.pubsub)];
    let of_class = |(class, limit): (&'static str, config::OutputLimit)| OutputLimit {
        class,
        hard: limit.hard,
        soft: limit.soft,
        seconds: limit.soft_for.as_secs(),
    };
    Limits {
        clients: values[keys::MAXCLIENTS],
        memory: values[keys::MAXMEMORY],
        threads: values[keys::IO_THREADS],
        output: classes.map(of_class).to_vec(),
    }
}

/// Returns the latency statistics of all commands that were called.
pub(super) fn commands(server: &Server) -> Vec<CommandLatency> {
    let percents = server.config.get(keys::LATENCY_TRACKING_INFO_PERCENTILES);
    let totals = server.housekeeping.totals();
    let all = ::commands::for_server().commands().iter().zip(&totals.commands);
    let called = all.filter(|(_, total)| total.calls > 0);
    called
        .map(|(entry, total)| {
            let times = server.engine.command_latency(entry.index);
            let quantile = |percent: &f64| (percent / 100.0, times.percentile(*percent) as f64 / 1000.0);
            let quantiles =
                if times.calls() == 0 { Vec::new() } else { percents.iter().map(quantile).collect() };
            CommandLatency {
                command: &entry.full_name,
                calls: total.calls,
                cumulative: times.cumulative(),
                sum: total.nanos as f64 / 1000.0,
                quantiles,
            }
        })
        .collect()
}

fn slow_log(server: &Server) -> SlowLog {
    let log = &server.engine.command_logs.slow;
    let last = log.newest(1).pop().map(|entry| (entry.id, entry.value as f64 / 1e6));
    SlowLog { length: log.count(), last }
}

fn latency_events(server: &Server) -> Vec<LatencyEvent> {
    let events = server.engine.latency.events();
    let last = events.into_iter().filter_map(|(name, event)| Some((name, *event.samples.back()?)));
    last.map(|(name, (at, millis))| LatencyEvent { name, at, seconds: millis as f64 / 1000.0 }).collect()
}

fn failovers(server: &Server) -> Option<Failovers> {
    let gossip = server.cluster.as_ref()?.machine.gossip.lock();
    let records = gossip.timeline().records();
    let replaced = |record: &gossip::FailoverRecord| record.replaced.map(|(.., at)| at.0);
    let last = gossip.timeline().records().filter_map(replaced).max();
    Some(Failovers { remembered: records.count(), last: last.map(|millis| millis as f64 / 1000.0) })
}
