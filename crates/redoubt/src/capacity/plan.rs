//! `redoubt capacity plan`: estimates the memory and the number of nodes for a data set.

use std::io::{self, Write};
use std::path::PathBuf;

use ::capacity::KeyGroup;
use ::capacity::plan::{CapacityPlan, ModelInputs, PlanRequirements, plan_capacity};
use anyhow::{Context as _, Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use keyspace::Kind;
use serde_json::json;

use super::describe::{self, DataSetOverrides};
use super::quantity::{self, Quantity, format_bytes};
use super::{chart, thread_heap_bytes};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlanFormat {
    /// Table.
    Table,
    /// One JSON object.
    Json,
    /// Chart in SVG.
    Svg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AllocatorBuild {
    /// Built with the bundled jemalloc.
    Bundled,
    /// Built with the jemalloc of the distribution, as Debian does.
    Distribution,
}

/// Parses a type by its Redis name.
fn kind_parser() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.iter().map(|kind| kind.name()))
        .map(|name| Kind::from_name(&name).expect("it is one of these"))
}

/// Arguments of `redoubt capacity plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// A description of several data sets (.yaml), or sample records (.jsonl, .csv).
    file: Option<PathBuf>,
    /// Number of keys, such as 700M.
    #[arg(long)]
    keys: Option<Quantity>,
    /// Type of the values.
    #[arg(long = "type", value_parser = kind_parser(), default_value = "string")]
    kind: Kind,
    /// Number of fields, members, items or entries per key.
    #[arg(long, alias = "elements", alias = "members", alias = "items", alias = "entries")]
    fields: Option<u64>,
    /// Mean length of a key.
    #[arg(long)]
    key_bytes: Option<u64>,
    /// Mean length of a field name.
    #[arg(long, default_value_t = 0)]
    field_bytes: u64,
    /// Mean length of a string, field value, member or item.
    #[arg(long)]
    value_bytes: Option<u64>,
    /// Length of the longest value of a key, if one is longer than the others.
    #[arg(long)]
    longest_bytes: Option<u64>,
    /// The values are integers.
    #[arg(long)]
    integers: bool,
    /// The keys have a time to live.
    #[arg(long)]
    ttl: bool,
    /// Replicas per master.
    #[arg(long, default_value_t = 1)]
    replicas: u64,
    /// Growth of the data, such as 5%/month or 60%/year.
    #[arg(long, value_parser = quantity::parse_growth, default_value = "0%/month")]
    growth: f64,
    /// Number of months for which the nodes must suffice.
    #[arg(long, default_value_t = 12)]
    months: u32,
    /// Share of a node's memory that stays free.
    #[arg(long, value_parser = quantity::parse_headroom, default_value = "30%")]
    headroom: f64,
    /// Memory of a node.
    #[arg(long, default_value = "64GB")]
    node_memory: Quantity,
    /// Network bandwidth between nodes in bytes per second.
    #[arg(long, default_value = "1GB")]
    bandwidth: Quantity,
    /// Build of Redis and Valkey, which determines the rounding of their allocations.
    #[arg(long, value_enum, default_value_t = AllocatorBuild::Bundled)]
    build: AllocatorBuild,
    /// Output format.
    #[arg(long, value_enum, default_value_t = PlanFormat::Table)]
    format: PlanFormat,
}

impl PlanOptions {
    fn read_data_sets(&self) -> Result<Vec<KeyGroup>> {
        let keys = self.keys.map(|keys| keys.0);
        if let Some(file) = &self.file {
            return describe::read_data_sets(
                file,
                DataSetOverrides { keys, key_bytes: self.key_bytes, expires: self.ttl },
            );
        }
        let (Some(keys), Some(key_bytes), Some(value_bytes)) = (keys, self.key_bytes, self.value_bytes)
        else {
            bail!("Pass --keys, --key-bytes and --value-bytes, or a file");
        };
        let kind = self.kind;
        if kind != Kind::String && self.fields.is_none_or(|fields| fields == 0) {
            bail!("Pass the number of --fields, --members, --items or --entries per key");
        }
        Ok(vec![KeyGroup {
            name: kind.name().to_owned(),
            kind,
            keys,
            elements: self.fields.unwrap_or(1),
            key_bytes,
            field_bytes: self.field_bytes,
            value_bytes,
            longest_value_bytes: self.longest_bytes,
            expires: self.ttl,
            values_are_integers: self.integers,
        }])
    }

    fn requirements(&self) -> PlanRequirements {
        let quantum = match self.build {
            AllocatorBuild::Bundled => capacity::allocator::BUNDLED_QUANTUM,
            AllocatorBuild::Distribution => capacity::allocator::DEFAULT_QUANTUM,
        };
        PlanRequirements {
            replicas: self.replicas,
            growth: (1.0 + self.growth).powf(f64::from(self.months)) - 1.0,
            headroom: self.headroom,
            node_memory: self.node_memory.0,
            bandwidth: self.bandwidth.0,
            models: ModelInputs { quantum, heap_counter: thread_heap_bytes },
        }
    }
}

/// Computes the plan and prints it.
///
/// # Errors
/// An argument is missing, or the file does not describe data.
pub(super) fn run_plan(options: &PlanOptions) -> Result<()> {
    let data = options.read_data_sets()?;
    check_limits(&data)?;
    let demand = options.requirements();
    let answers = plan_capacity(&data, &demand);
    let mut out = io::stdout().lock();
    match options.format {
        PlanFormat::Table => write_table(&data, &demand, &answers, &mut out)?,
        PlanFormat::Json => {
            let object = json!({
                "keys": data.iter().map(|data| data.keys).sum::<u64>(),
                "growth": demand.growth,
                "servers": answers,
            });
            serde_json::to_writer_pretty(&mut out, &object)?;
            writeln!(out)?;
        }
        PlanFormat::Svg => {
            out.write_all(chart::draw_svg(&answers).context("Cannot draw the chart")?.as_bytes())?;
        }
    }
    Ok(())
}

/// Rejects sizes at which sums would overflow or the measured sample would be too large.
fn check_limits(data: &[KeyGroup]) -> Result<()> {
    const MAX_VALUE_BYTES: u64 = 512 << 20;
    for data in data {
        let lengths = [data.key_bytes, data.field_bytes, data.value_bytes, data.longest_value_len()];
        if lengths.iter().any(|len| *len > MAX_VALUE_BYTES) {
            bail!("{}: keys, fields and values are limited to 512 MB", data.name);
        }
        if data.elements > u64::from(u32::MAX) || data.keys > 1 << 50 {
            bail!("{}: too many keys or elements", data.name);
        }
    }
    if data.is_empty() {
        bail!("The description contains no data");
    }
    Ok(())
}

fn write_table(
    data: &[KeyGroup],
    requirements: &PlanRequirements,
    plans: &[CapacityPlan],
    out: &mut impl Write,
) -> io::Result<()> {
    for data in data {
        let KeyGroup { name, keys, key_bytes, value_bytes, .. } = data;
        let elements = data.elements_per_key();
        writeln!(
            out,
            "{name}: {keys} keys of {key_bytes} bytes, {elements} values of {value_bytes} bytes each, {} bytes of payload per key",
            data.payload_bytes()
        )?;
    }
    write!(out, "\n{:<28}", "")?;
    plans.iter().try_for_each(|answer| write!(out, "{:>12}", answer.server))?;
    let mut row = |name: &str, of: &dyn Fn(&CapacityPlan) -> String| {
        write!(out, "\n{name:<28}")?;
        plans.iter().try_for_each(|answer| write!(out, "{:>12}", of(answer)))
    };
    row("bytes per key", &|answer| format!("{:.1}", answer.per_key.total()))?;
    row("  payload", &|answer| format!("{:.1}", answer.per_key.payload))?;
    row("  headers", &|answer| format!("{:.1}", answer.per_key.headers))?;
    row("  index", &|answer| format!("{:.1}", answer.per_key.index))?;
    row("  rounding", &|answer| format!("{:.1}", answer.per_key.rounding))?;
    row("total", &|answer| format_bytes(answer.total))?;
    if requirements.growth > 0.0 {
        row(&format!("after growth of {:.0} %", requirements.growth * 100.0), &|answer| {
            format_bytes(answer.grown)
        })?;
    }
    row("shards", &|answer| answer.shards.to_string())?;
    row("nodes", &|answer| answer.nodes.to_string())?;
    row("memory used per node", &|answer| format_bytes(answer.per_node))?;
    row("full sync size", &|answer| format_bytes(answer.sync_bytes))?;
    row("full sync seconds", &|answer| format!("{:.0}", answer.sync_seconds))?;
    writeln!(out)
}
