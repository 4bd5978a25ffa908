//! The figures of a snapshot, family by family, in Prometheus's text format.

use std::fmt::Result;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, GaugeValueEncoder,
    MetricEncoder, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::Snapshot;
use crate::fields::{Fields, part};
use crate::names::{OF_A_REPLICA, OF_THE_CLUSTER, OF_THE_INSTANCE, SIMPLE, Sort};

/// The text of a scrape.
#[must_use]
pub fn render(snapshot: Snapshot) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register_collector(Box::new(snapshot));
    // Writing to a String cannot fail.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        let mut page = Page { encoder };
        let info = Fields::of(&self.info);
        instance(&mut page, info)?;
        simple(&mut page, info)?;
        databases(&mut page, info)?;
        replication(&mut page, info)?;
        commands(&mut page, self, info)?;
        cluster(&mut page, Fields::of(&self.cluster_info))?;
        limits(&mut page, self)?;
        slow(&mut page, self)?;
        ours(&mut page, self, info)
    }
}

/// A value as it is written: whole where it is whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Whole(i64),
    Fraction(f64),
}

impl Number {
    /// A word of INFO as a number: what is well is 1.
    fn of(word: &str) -> Option<Self> {
        match word {
            "ok" | "up" | "true" | "yes" => Some(Self::Whole(1)),
            "err" | "fail" | "down" | "false" | "no" => Some(Self::Whole(0)),
            number => match number.parse() {
                Ok(whole) => Some(Self::Whole(whole)),
                Err(_) => number.parse().ok().filter(|number: &f64| number.is_finite()).map(Self::Fraction),
            },
        }
    }

    fn over(self, divisor: f64) -> Self {
        match self {
            Self::Whole(whole) => Self::Fraction(whole as f64 / divisor),
            Self::Fraction(fraction) => Self::Fraction(fraction / divisor),
        }
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Fraction(number)
    }
}

impl From<bool> for Number {
    fn from(holds: bool) -> Self {
        Self::Whole(i64::from(holds))
    }
}

impl EncodeGaugeValue for Number {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> Result {
        match self {
            Self::Whole(whole) => EncodeGaugeValue::encode(whole, encoder),
            Self::Fraction(fraction) => EncodeGaugeValue::encode(fraction, encoder),
        }
    }
}

impl EncodeCounterValue for Number {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> Result {
        match self {
            Self::Whole(whole) => EncodeCounterValue::encode(&u64::try_from(*whole).unwrap_or(0), encoder),
            Self::Fraction(fraction) => EncodeCounterValue::encode(fraction, encoder),
        }
    }
}

/// A sample's labels.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// The text so far.
struct Page<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl Page<'_> {
    /// A family of samples; nothing if there are none.
    fn family<'a>(
        &mut self,
        (name, help, sort): (&str, &str, Sort),
        samples: impl IntoIterator<Item = (Labels<'a>, Number)>,
    ) -> Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        // The library ends counters with `_total`. A few that dashboards know have another end: they go untyped.
        let (name, kind) = match (sort, name.strip_suffix("_total")) {
            (Sort::Gauge, _) => (name, MetricType::Gauge),
            (Sort::Counter, Some(stem)) => (stem, MetricType::Counter),
            (Sort::Counter, None) => (name, MetricType::Unknown),
        };
        let mut family = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, number) in samples {
            if labels.is_empty() {
                sample(&mut family, kind, number)?;
            } else {
                sample(&mut family.encode_family(&labels)?, kind, number)?;
            }
        }
        Ok(())
    }

    /// A figure without labels.
    fn gauge(&mut self, name: &str, help: &str, number: impl Into<Number>) -> Result {
        self.family((name, help, Sort::Gauge), [(Vec::new(), number.into())])
    }
}

fn sample(encoder: &mut MetricEncoder<'_>, kind: MetricType, number: Number) -> Result {
    if kind == MetricType::Counter {
        encoder.encode_counter::<NoLabelSet, _, u64>(&number, None)
    } else {
        encoder.encode_gauge(&number)
    }
}

/// The facts of the process, as labels of a 1.
fn instance(page: &mut Page<'_>, info: Fields<'_>) -> Result {
    page.gauge("redis_up", "Whether the server answers: it does.", true)?;
    let labels = OF_THE_INSTANCE.iter().filter_map(|name| Some((*name, info.value(name)?)));
    let labels: Labels<'_> = labels.filter(|(_, value)| !value.is_empty()).collect();
    page.family(("redis_instance_info", "The server's facts.", Sort::Gauge), [(labels, Number::Whole(1))])?;
    let micros = info.value("server_time_usec").and_then(Number::of);
    let uptime = info.value("uptime_in_seconds").and_then(Number::of);
    if let (Some(Number::Whole(micros)), Some(Number::Whole(uptime))) = (micros, uptime) {
        let started = Number::Whole(micros / 1_000_000 - uptime);
        page.gauge("redis_start_time_seconds", "When the server started.", started)?;
    }
    Ok(())
}

/// The fields that are one number or one word.
fn simple(page: &mut Page<'_>, info: Fields<'_>) -> Result {
    // INFO's lines come about in the order of the table: looking from the last one on finds most at once.
    let fields: Vec<(&str, &str)> = info.all().collect();
    let mut from = 0;
    for (field, sort, name) in SIMPLE {
        let places = (from..fields.len()).chain(0..from);
        let Some(place) = places.into_iter().find(|place| fields[*place].0 == *field) else { continue };
        from = place + 1;
        if let Some(number) = Number::of(fields[place].1) {
            let (name, help) = (format!("redis_{name}"), format!("INFO {field}"));
            page.family((&name, &help, *sort), [(Vec::new(), number)])?;
        }
    }
    Ok(())
}

fn databases(page: &mut Page<'_>, info: Fields<'_>) -> Result {
    let figures = [
        ("redis_db_keys", "Keys of a database.", "keys", 1.0),
        ("redis_db_keys_expiring", "Keys of a database that expire.", "expires", 1.0),
        ("redis_db_avg_ttl_seconds", "Mean time that they have left.", "avg_ttl", 1000.0),
        ("redis_db_keys_with_expiring_items", "Keys whose elements expire.", "keys_with_volatile_items", 1.0),
    ];
    for (name, help, wanted, divisor) in figures {
        let samples = info.numbered("db").filter_map(|(db, value)| {
            let number = Number::of(part(value, wanted)?)?;
            Some((vec![("db", db)], if divisor == 1.0 { number } else { number.over(divisor) }))
        });
        page.family((name, help, Sort::Gauge), samples)?;
    }
    Ok(())
}

fn replication(page: &mut Page<'_>, info: Fields<'_>) -> Result {
    let figures = [
        ("redis_connected_slave_offset_bytes", "The offset that a replica has acknowledged.", "offset"),
        ("redis_connected_slave_lag_seconds", "Time since a replica was heard.", "lag"),
    ];
    for (name, help, wanted) in figures {
        let samples = info.numbered("slave").filter_map(|(_, value)| {
            let label = |name, key| Some((name, part(value, key)?));
            let labels =
                vec![label("slave_ip", "ip")?, label("slave_port", "port")?, label("slave_state", "state")?];
            Some((labels, Number::of(part(value, wanted)?)?))
        });
        page.family((name, help, Sort::Gauge), samples)?;
    }
    let (Some(host), Some(port)) = (info.value("master_host"), info.value("master_port")) else {
        return Ok(());
    };
    for (field, name) in OF_A_REPLICA {
        if let Some(number) = info.value(field).and_then(Number::of) {
            let (name, help) = (format!("redis_{name}"), format!("INFO {field}"));
            let labels = vec![("master_host", host), ("master_port", port)];
            page.family((&name, &help, Sort::Gauge), [(labels, number)])?;
        }
    }
    let read_only = info.value("slave_read_only").unwrap_or("1");
    let labels = vec![("master_host", host), ("master_port", port), ("read_only", read_only)];
    page.family(("redis_slave_info", "The facts of a replica.", Sort::Gauge), [(labels, Number::Whole(1))])
}

/// The calls of each command.
fn commands(page: &mut Page<'_>, snapshot: &Snapshot, info: Fields<'_>) -> Result {
    let figures = [
        ("redis_commands_total", "Calls of a command.", "calls", 1.0),
        ("redis_commands_duration_seconds_total", "Time that they took.", "usec", 1e6),
        ("redis_commands_rejected_calls_total", "Calls that did not run.", "rejected_calls", 1.0),
        ("redis_commands_failed_calls_total", "Calls that failed.", "failed_calls", 1.0),
    ];
    for (name, help, wanted, divisor) in figures {
        let samples = info.beginning("cmdstat_").filter_map(|(command, value)| {
            let number = Number::of(part(value, wanted)?)?;
            Some((vec![("cmd", command)], if divisor == 1.0 { number } else { number.over(divisor) }))
        });
        page.family((name, help, Sort::Counter), samples)?;
    }
    let errors = info
        .beginning("errorstat_")
        .filter_map(|(code, value)| Some((vec![("err", code)], Number::of(part(value, "count")?)?)));
    page.family(("redis_errors_total", "Error replies by their code.", Sort::Counter), errors)?;
    histograms(page, snapshot)?;
    percentiles(page, snapshot)
}

/// How long the calls of each command took, in microseconds, as LATENCY HISTOGRAM has it.
fn histograms(page: &mut Page<'_>, snapshot: &Snapshot) -> Result {
    let mut commands = snapshot.commands.iter().filter(|command| !command.cumulative.is_empty()).peekable();
    if commands.peek().is_none() {
        return Ok(());
    }
    let (name, help) = ("redis_commands_latencies_usec", "How long calls took, in microseconds.");
    let mut family = page.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for command in commands {
        let mut before = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(command.cumulative.len() + 1);
        for (micros, calls) in &command.cumulative {
            buckets.push((*micros as f64, calls - before));
            before = *calls;
        }
        buckets.push((f64::INFINITY, 0));
        let labels = vec![("cmd", command.command)];
        let mut encoder = family.encode_family(&labels)?;
        encoder.encode_histogram::<NoLabelSet>(command.sum, before, &buckets, None)?;
    }
    Ok(())
}

/// The percentiles of INFO's Latencystats. Its readers know them as a summary, which is a family of its own samples and
/// of two more.
fn percentiles(page: &mut Page<'_>, snapshot: &Snapshot) -> Result {
    let of = |quantile: f64| quantile.to_string();
    let quantiles: Vec<(&str, String, f64)> = snapshot
        .commands
        .iter()
        .flat_map(|command| {
            command.quantiles.iter().map(|(quantile, micros)| (command.command, of(*quantile), *micros))
        })
        .collect();
    let samples = quantiles.iter().map(|(command, quantile, micros)| {
        (vec![("cmd", *command), ("quantile", quantile.as_str())], Number::Fraction(*micros))
    });
    let help = "Percentiles of how long calls took, in microseconds.";
    page.family(("redis_latency_percentiles_usec", help, Sort::Gauge), samples)?;
    let shown = || snapshot.commands.iter().filter(|command| !command.quantiles.is_empty());
    let calls = |cumulative: &[(u64, u64)]| cumulative.last().map_or(0, |(_, calls)| *calls);
    let counts =
        shown().map(|command| (vec![("cmd", command.command)], Number::from(calls(&command.cumulative))));
    page.family(("redis_latency_percentiles_usec_count", "Calls counted.", Sort::Counter), counts)?;
    let sums = shown().map(|command| (vec![("cmd", command.command)], Number::from(command.sum)));
    page.family(("redis_latency_percentiles_usec_sum", "Time of all calls.", Sort::Counter), sums)
}

fn cluster(page: &mut Page<'_>, info: Fields<'_>) -> Result {
    for (field, value) in info.all() {
        let Some(number) = Number::of(value) else { continue };
        let renamed = OF_THE_CLUSTER.iter().find(|(known, _)| *known == field);
        let name = format!("redis_{}", renamed.map_or(field, |(_, name)| name));
        page.gauge(&name, &format!("CLUSTER INFO {field}"), number)?;
    }
    Ok(())
}

fn limits(page: &mut Page<'_>, snapshot: &Snapshot) -> Result {
    let limits = &snapshot.limits;
    page.gauge("redis_config_maxclients", "maxclients", limits.clients)?;
    page.gauge("redis_config_maxmemory", "maxmemory", limits.memory)?;
    page.gauge("redis_config_io_threads", "io-threads", limits.threads)?;
    let bytes = limits.output.iter().flat_map(|limit| {
        let sample = |which, bytes: usize| (vec![("class", limit.class), ("limit", which)], bytes.into());
        [sample("hard", limit.hard), sample("soft", limit.soft)]
    });
    let name = "redis_config_client_output_buffer_limit_bytes";
    page.family((name, "client-output-buffer-limit", Sort::Gauge), bytes)?;
    let seconds = limits
        .output
        .iter()
        .map(|limit| (vec![("class", limit.class), ("limit", "soft")], Number::from(limit.seconds)));
    let name = "redis_config_client_output_buffer_limit_overcome_seconds";
    page.family((name, "How long the soft limit may be exceeded.", Sort::Gauge), seconds)
}

/// SLOWLOG and LATENCY.
fn slow(page: &mut Page<'_>, snapshot: &Snapshot) -> Result {
    let log = &snapshot.slow_log;
    page.gauge("redis_slowlog_length", "Entries of SLOWLOG.", log.length)?;
    let (id, seconds) = log.last.unwrap_or((0, 0.0));
    page.gauge("redis_slowlog_last_id", "The number of its last entry.", id)?;
    let help = "How long the command of its last entry took.";
    page.gauge("redis_last_slow_execution_duration_seconds", help, seconds)?;
    let events = || snapshot.latency_events.iter();
    let last = events().map(|event| (vec![("event_name", event.name)], Number::Whole(event.at)));
    page.family(("redis_latency_spike_last", "When an event last took long.", Sort::Gauge), last)?;
    let lasted = events().map(|event| (vec![("event_name", event.name)], Number::from(event.seconds)));
    page.family(("redis_latency_spike_duration_seconds", "How long it took then.", Sort::Gauge), lasted)
}

/// Figures that Redis has not, by names of our own.
fn ours(page: &mut Page<'_>, snapshot: &Snapshot, info: Fields<'_>) -> Result {
    let ready = snapshot.hindrances.iter().all(|(_, holds)| !holds);
    page.gauge("redoubt_ready", "Whether /readyz says ready.", ready)?;
    let reasons = snapshot.hindrances.iter();
    let reasons = reasons.map(|(reason, holds)| (vec![("reason", *reason)], Number::from(*holds)));
    page.family(("redoubt_not_ready", "What keeps the node from being ready.", Sort::Gauge), reasons)?;
    if let Some(slots) = snapshot.slots_served {
        page.gauge("redoubt_slots_served", "Slots that this node serves.", slots)?;
    }
    if let Some(failovers) = snapshot.failovers {
        let help = "Failures of nodes that this node remembers, of which a hundred are kept.";
        page.gauge("redoubt_failures_remembered", help, failovers.remembered)?;
        let help = "When a failed master was last replaced, as this node saw it; 0 if never.";
        page.gauge("redoubt_last_failover_timestamp_seconds", help, failovers.last.unwrap_or(0.0))?;
    }
    let further = [
        ("expired_fields", Sort::Counter, "redoubt_expired_fields_total"),
        ("lazyfreed_objects", Sort::Counter, "redoubt_lazyfreed_objects_total"),
        ("slave_unapplied_changes", Sort::Gauge, "redoubt_replica_unapplied_changes"),
        ("eventloop_cycles", Sort::Counter, "redoubt_eventloop_cycles_total"),
        ("instantaneous_ops_per_sec", Sort::Gauge, "redoubt_commands_per_second"),
        ("tls_server_cert_expires_in_seconds", Sort::Gauge, "redoubt_tls_server_cert_expires_in_seconds"),
    ];
    for (field, sort, name) in further {
        if let Some(number) = info.value(field).and_then(Number::of) {
            page.family((name, &format!("INFO {field}"), sort), [(Vec::new(), number)])?;
        }
    }
    let busy = info.value("eventloop_duration_sum").and_then(Number::of);
    if let Some(micros) = busy {
        let help = "Time that the workers were at work.";
        let samples = [(Vec::new(), micros.over(1e6))];
        page.family(("redoubt_eventloop_busy_seconds_total", help, Sort::Counter), samples)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
