//! Renders a [`MetricsSnapshot`] in the Prometheus text format, one metric family after another.

use std::fmt::Result;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, GaugeValueEncoder,
    MetricEncoder, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::MetricsSnapshot;
use crate::fields::{InfoFields, find_entry};
use crate::names::{CLUSTER_INFO_NAMES, INSTANCE_LABELS, MetricKind, REPLICA_FIELDS, SIMPLE_FIELDS};

/// Renders `snapshot` as the body of a scrape response.
#[must_use]
pub fn render(snapshot: MetricsSnapshot) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(snapshot));
    // Writing to a `String` cannot fail.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

impl Collector for MetricsSnapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        let mut out = FamilyWriter { encoder };
        let info = InfoFields::new(&self.info);
        write_instance(&mut out, info)?;
        write_simple_fields(&mut out, info)?;
        write_databases(&mut out, info)?;
        write_replication(&mut out, info)?;
        write_commands(&mut out, self, info)?;
        write_cluster(&mut out, InfoFields::new(&self.cluster_info))?;
        write_limits(&mut out, self)?;
        write_slow_log_and_latency(&mut out, self)?;
        write_redoubt_metrics(&mut out, self, info)
    }
}

/// A metric value; integers are printed without a fraction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum SampleValue {
    Integer(i64),
    Float(f64),
}

impl SampleValue {
    /// Parses an INFO value. Status words become numbers: words such as `ok` and `up` become 1.
    fn parse(word: &str) -> Option<Self> {
        match word {
            "ok" | "up" | "true" | "yes" => Some(Self::Integer(1)),
            "err" | "fail" | "down" | "false" | "no" => Some(Self::Integer(0)),
            number => match number.parse() {
                Ok(whole) => Some(Self::Integer(whole)),
                Err(_) => number.parse().ok().filter(|number: &f64| number.is_finite()).map(Self::Float),
            },
        }
    }

    fn divided_by(self, divisor: f64) -> Self {
        match self {
            Self::Integer(whole) => Self::Float(whole as f64 / divisor),
            Self::Float(fraction) => Self::Float(fraction / divisor),
        }
    }
}

impl From<usize> for SampleValue {
    fn from(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u64> for SampleValue {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f64> for SampleValue {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for SampleValue {
    fn from(condition: bool) -> Self {
        Self::Integer(i64::from(condition))
    }
}

impl EncodeGaugeValue for SampleValue {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> Result {
        match self {
            Self::Integer(whole) => EncodeGaugeValue::encode(whole, encoder),
            Self::Float(fraction) => EncodeGaugeValue::encode(fraction, encoder),
        }
    }
}

impl EncodeCounterValue for SampleValue {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> Result {
        match self {
            Self::Integer(whole) => EncodeCounterValue::encode(&u64::try_from(*whole).unwrap_or(0), encoder),
            Self::Float(fraction) => EncodeCounterValue::encode(fraction, encoder),
        }
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Registers metric families with the encoder.
struct FamilyWriter<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl FamilyWriter<'_> {
    /// Adds a metric family with its samples; an empty family is left out.
    fn write_family<'a>(
        &mut self,
        name: &str,
        help: &str,
        sort: MetricKind,
        samples: impl IntoIterator<Item = (Labels<'a>, SampleValue)>,
    ) -> Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        // The encoder appends `_total` to counters. Counters whose established name lacks that
        // suffix are exported as untyped.
        let (name, kind) = match (sort, name.strip_suffix("_total")) {
            (MetricKind::Gauge, _) => (name, MetricType::Gauge),
            (MetricKind::Counter, Some(stem)) => (stem, MetricType::Counter),
            (MetricKind::Counter, None) => (name, MetricType::Unknown),
        };
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, number) in samples {
            if labels.is_empty() {
                write_sample(&mut family, kind, number)?;
            } else {
                write_sample(&mut family.encode_family(&labels)?, kind, number)?;
            }
        }
        Ok(())
    }

    /// Adds a gauge without labels.
    fn write_gauge(&mut self, name: &str, help: &str, value: impl Into<SampleValue>) -> Result {
        self.write_family(name, help, MetricKind::Gauge, [(Vec::new(), value.into())])
    }
}

fn write_sample(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: SampleValue) -> Result {
    if kind == MetricType::Counter {
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    } else {
        encoder.encode_gauge(&value)
    }
}

/// Adds `instance_info`, a constant 1 whose labels describe the process.
fn write_instance(out: &mut FamilyWriter<'_>, info: InfoFields<'_>) -> Result {
    out.write_gauge("redis_up", "Always 1; absent if the scrape fails.", true)?;
    let labels = INSTANCE_LABELS.iter().filter_map(|name| Some((*name, info.value(name)?)));
    let labels: Labels<'_> = labels.filter(|(_, value)| !value.is_empty()).collect();
    out.write_family(
        "redis_instance_info",
        "Build and process information.",
        MetricKind::Gauge,
        [(labels, SampleValue::Integer(1))],
    )?;
    let micros = info.value("server_time_usec").and_then(SampleValue::parse);
    let uptime = info.value("uptime_in_seconds").and_then(SampleValue::parse);
    if let (Some(SampleValue::Integer(micros)), Some(SampleValue::Integer(uptime))) = (micros, uptime) {
        let started = SampleValue::Integer(micros / 1_000_000 - uptime);
        out.write_gauge("redis_start_time_seconds", "Start time in Unix seconds.", started)?;
    }
    Ok(())
}

/// Adds the metrics of [`names::SIMPLE_FIELDS`].
fn write_simple_fields(out: &mut FamilyWriter<'_>, info: InfoFields<'_>) -> Result {
    // INFO prints its fields in the order of this table, so searching onward from the previous hit
    // usually succeeds at once.
    let fields: Vec<(&str, &str)> = info.iter().collect();
    let mut from = 0;
    for (field, sort, name) in SIMPLE_FIELDS {
        let places = (from..fields.len()).chain(0..from);
        let Some(place) = places.into_iter().find(|place| fields[*place].0 == *field) else { continue };
        from = place + 1;
        if let Some(number) = SampleValue::parse(fields[place].1) {
            let (name, help) = (format!("redis_{name}"), format!("INFO {field}"));
            out.write_family(&name, &help, *sort, [(Vec::new(), number)])?;
        }
    }
    Ok(())
}

fn write_databases(out: &mut FamilyWriter<'_>, info: InfoFields<'_>) -> Result {
    let figures = [
        ("redis_db_keys", "Number of keys in the database.", "keys", 1.0),
        ("redis_db_keys_expiring", "Number of keys with a time to live.", "expires", 1.0),
        ("redis_db_avg_ttl_seconds", "Mean remaining time to live.", "avg_ttl", 1000.0),
        (
            "redis_db_keys_with_expiring_items",
            "Number of keys whose fields have a time to live.",
            "keys_with_volatile_items",
            1.0,
        ),
    ];
    for (name, help, wanted, divisor) in figures {
        let samples = info.numbered_fields("db").filter_map(|(db, value)| {
            let number = SampleValue::parse(find_entry(value, wanted)?)?;
            Some((vec![("db", db)], if divisor == 1.0 { number } else { number.divided_by(divisor) }))
        });
        out.write_family(name, help, MetricKind::Gauge, samples)?;
    }
    Ok(())
}

fn write_replication(out: &mut FamilyWriter<'_>, info: InfoFields<'_>) -> Result {
    let figures = [
        ("redis_connected_slave_offset_bytes", "Offset acknowledged by the replica.", "offset"),
        ("redis_connected_slave_lag_seconds", "Time since the replica's last acknowledgement.", "lag"),
    ];
    for (name, help, wanted) in figures {
        let samples = info.numbered_fields("slave").filter_map(|(_, value)| {
            let label = |name, key| Some((name, find_entry(value, key)?));
            let labels =
                vec![label("slave_ip", "ip")?, label("slave_port", "port")?, label("slave_state", "state")?];
            Some((labels, SampleValue::parse(find_entry(value, wanted)?)?))
        });
        out.write_family(name, help, MetricKind::Gauge, samples)?;
    }
    let (Some(host), Some(port)) = (info.value("master_host"), info.value("master_port")) else {
        return Ok(());
    };
    for (field, name) in REPLICA_FIELDS {
        if let Some(number) = info.value(field).and_then(SampleValue::parse) {
            let (name, help) = (format!("redis_{name}"), format!("INFO {field}"));
            let labels = vec![("master_host", host), ("master_port", port)];
            out.write_family(&name, &help, MetricKind::Gauge, [(labels, number)])?;
        }
    }
    let read_only = info.value("slave_read_only").unwrap_or("1");
    let labels = vec![("master_host", host), ("master_port", port), ("read_only", read_only)];
    out.write_family(
        "redis_slave_info",
        "Replication settings of this replica.",
        MetricKind::Gauge,
        [(labels, SampleValue::Integer(1))],
    )
}

/// Adds call counts, durations and failures per command.
fn write_commands(out: &mut FamilyWriter<'_>, snapshot: &MetricsSnapshot, info: InfoFields<'_>) -> Result {
    let figures = [
        ("redis_commands_total", "Number of calls per command.", "calls", 1.0),
        ("redis_commands_duration_seconds_total", "Total execution time per command.", "usec", 1e6),
        ("redis_commands_rejected_calls_total", "Calls rejected before execution.", "rejected_calls", 1.0),
        ("redis_commands_failed_calls_total", "Calls that failed during execution.", "failed_calls", 1.0),
    ];
    for (name, help, wanted, divisor) in figures {
        let samples = info.with_prefix("cmdstat_").filter_map(|(command, value)| {
            let number = SampleValue::parse(find_entry(value, wanted)?)?;
            Some((vec![("cmd", command)], if divisor == 1.0 { number } else { number.divided_by(divisor) }))
        });
        out.write_family(name, help, MetricKind::Counter, samples)?;
    }
    let errors = info.with_prefix("errorstat_").filter_map(|(code, value)| {
        Some((vec![("err", code)], SampleValue::parse(find_entry(value, "count")?)?))
    });
    out.write_family("redis_errors_total", "Error replies by error code.", MetricKind::Counter, errors)?;
    write_histograms(out, snapshot)?;
    write_percentiles(out, snapshot)
}

/// Adds latency histograms per command in microseconds, with the buckets of LATENCY HISTOGRAM.
fn write_histograms(out: &mut FamilyWriter<'_>, snapshot: &MetricsSnapshot) -> Result {
    let mut commands =
        snapshot.commands.iter().filter(|command| !command.cumulative_counts.is_empty()).peekable();
    if commands.peek().is_none() {
        return Ok(());
    }
    let (name, help) = ("redis_commands_latencies_usec", "Latency histogram in microseconds.");
    let mut family = out.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for command in commands {
        let mut before = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(command.cumulative_counts.len() + 1);
        for (micros, calls) in &command.cumulative_counts {
            buckets.push((*micros as f64, calls - before));
            before = *calls;
        }
        buckets.push((f64::INFINITY, 0));
        let labels = vec![("cmd", command.command)];
        let mut encoder = family.encode_family(&labels)?;
        encoder.encode_histogram::<NoLabelSet>(command.total_micros, before, &buckets, None)?;
    }
    Ok(())
}

/// Adds the percentiles of INFO's Latencystats section. redis_exporter exports them as a summary, which consists of
/// three metric families.
fn write_percentiles(out: &mut FamilyWriter<'_>, snapshot: &MetricsSnapshot) -> Result {
    let of = |quantile: f64| quantile.to_string();
    let quantiles: Vec<(&str, String, f64)> = snapshot
        .commands
        .iter()
        .flat_map(|command| {
            command.quantiles.iter().map(|(quantile, micros)| (command.command, of(*quantile), *micros))
        })
        .collect();
    let samples = quantiles.iter().map(|(command, quantile, micros)| {
        (vec![("cmd", *command), ("quantile", quantile.as_str())], SampleValue::Float(*micros))
    });
    let help = "Latency percentiles in microseconds.";
    out.write_family("redis_latency_percentiles_usec", help, MetricKind::Gauge, samples)?;
    let shown = || snapshot.commands.iter().filter(|command| !command.quantiles.is_empty());
    let calls = |cumulative: &[(u64, u64)]| cumulative.last().map_or(0, |(_, calls)| *calls);
    let counts = shown().map(|command| {
        (vec![("cmd", command.command)], SampleValue::from(calls(&command.cumulative_counts)))
    });
    out.write_family(
        "redis_latency_percentiles_usec_count",
        "Number of calls.",
        MetricKind::Counter,
        counts,
    )?;
    let sums =
        shown().map(|command| (vec![("cmd", command.command)], SampleValue::from(command.total_micros)));
    out.write_family(
        "redis_latency_percentiles_usec_sum",
        "Total latency of all calls, in microseconds.",
        MetricKind::Counter,
        sums,
    )
}

fn write_cluster(out: &mut FamilyWriter<'_>, info: InfoFields<'_>) -> Result {
    for (field, value) in info.iter() {
        let Some(number) = SampleValue::parse(value) else { continue };
        let renamed = CLUSTER_INFO_NAMES.iter().find(|(known, _)| *known == field);
        let name = format!("redis_{}", renamed.map_or(field, |(_, name)| name));
        out.write_gauge(&name, &format!("CLUSTER INFO {field}"), number)?;
    }
    Ok(())
}

fn write_limits(out: &mut FamilyWriter<'_>, snapshot: &MetricsSnapshot) -> Result {
    let limits = &snapshot.limits;
    out.write_gauge("redis_config_maxclients", "maxclients", limits.max_clients)?;
    out.write_gauge("redis_config_maxmemory", "maxmemory", limits.max_memory_bytes)?;
    out.write_gauge("redis_config_io_threads", "io-threads", limits.worker_threads)?;
    let bytes = limits.output_limits.iter().flat_map(|limit| {
        let sample = |which, bytes: usize| (vec![("class", limit.class), ("limit", which)], bytes.into());
        [sample("hard", limit.hard_limit), sample("soft", limit.soft_limit)]
    });
    let name = "redis_config_client_output_buffer_limit_bytes";
    out.write_family(name, "client-output-buffer-limit", MetricKind::Gauge, bytes)?;
    let seconds = limits.output_limits.iter().map(|limit| {
        (vec![("class", limit.class), ("limit", "soft")], SampleValue::from(limit.soft_limit_seconds))
    });
    let name = "redis_config_client_output_buffer_limit_overcome_seconds";
    out.write_family(name, "Time that a client may stay above the soft limit.", MetricKind::Gauge, seconds)
}

fn write_slow_log_and_latency(out: &mut FamilyWriter<'_>, snapshot: &MetricsSnapshot) -> Result {
    let log = &snapshot.slow_log;
    out.write_gauge("redis_slowlog_length", "Number of entries in the slow log.", log.length)?;
    let (id, seconds) = log.newest_entry.unwrap_or((0, 0.0));
    out.write_gauge("redis_slowlog_last_id", "Id of the newest slow log entry.", id)?;
    let help = "Duration of the newest slow log entry.";
    out.write_gauge("redis_last_slow_execution_duration_seconds", help, seconds)?;
    let events = || snapshot.latency_events.iter();
    let last =
        events().map(|event| (vec![("event_name", event.name)], SampleValue::Integer(event.unix_secs)));
    out.write_family(
        "redis_latency_spike_last",
        "Unix time of the latest occurrence of the event.",
        MetricKind::Gauge,
        last,
    )?;
    let lasted = events().map(|event| (vec![("event_name", event.name)], SampleValue::from(event.seconds)));
    out.write_family(
        "redis_latency_spike_duration_seconds",
        "Duration of the latest occurrence of the event.",
        MetricKind::Gauge,
        lasted,
    )
}

/// Adds the `redoubt_...` metrics, which redis_exporter does not have.
fn write_redoubt_metrics(
    out: &mut FamilyWriter<'_>,
    snapshot: &MetricsSnapshot,
    info: InfoFields<'_>,
) -> Result {
    let ready = snapshot.not_ready_reasons.iter().all(|(_, holds)| !holds);
    out.write_gauge("redoubt_ready", "Whether /readyz reports ready.", ready)?;
    let reasons = snapshot.not_ready_reasons.iter();
    let reasons = reasons.map(|(reason, holds)| (vec![("reason", *reason)], SampleValue::from(*holds)));
    out.write_family(
        "redoubt_not_ready",
        "1 for each reason why the node is not ready.",
        MetricKind::Gauge,
        reasons,
    )?;
    if let Some(slots) = snapshot.slots_served {
        out.write_gauge("redoubt_slots_served", "Number of slots that this node serves.", slots)?;
    }
    if let Some(failovers) = snapshot.failovers {
        let help = "Failovers recorded by this node, at most 100.";
        out.write_gauge("redoubt_failures_remembered", help, failovers.recorded_count)?;
        let help = "Unix time of the last failover recorded by this node; 0 if none.";
        out.write_gauge(
            "redoubt_last_failover_timestamp_seconds",
            help,
            failovers.last_promotion_unix_secs.unwrap_or(0.0),
        )?;
    }
    let further = [
        ("expired_fields", MetricKind::Counter, "redoubt_expired_fields_total"),
        ("lazyfreed_objects", MetricKind::Counter, "redoubt_lazyfreed_objects_total"),
        ("slave_unapplied_changes", MetricKind::Gauge, "redoubt_replica_unapplied_changes"),
        ("eventloop_cycles", MetricKind::Counter, "redoubt_eventloop_cycles_total"),
        ("instantaneous_ops_per_sec", MetricKind::Gauge, "redoubt_commands_per_second"),
        (
            "tls_server_cert_expires_in_seconds",
            MetricKind::Gauge,
            "redoubt_tls_server_cert_expires_in_seconds",
        ),
    ];
    for (field, sort, name) in further {
        if let Some(number) = info.value(field).and_then(SampleValue::parse) {
            out.write_family(name, &format!("INFO {field}"), sort, [(Vec::new(), number)])?;
        }
    }
    let busy = info.value("eventloop_duration_sum").and_then(SampleValue::parse);
    if let Some(micros) = busy {
        let help = "Busy time of all worker threads.";
        let samples = [(Vec::new(), micros.divided_by(1e6))];
        out.write_family("redoubt_eventloop_busy_seconds_total", help, MetricKind::Counter, samples)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
