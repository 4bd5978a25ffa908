//! `redoubt capacity plan`: what data will take, and on how many nodes.

use std::io::{self, Write};
use std::path::PathBuf;

use ::capacity::Data;
use ::capacity::plan::{Answer, Demand, Models, plan};
use anyhow::{Context as _, Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use keyspace::Kind;
use serde_json::json;

use super::describe::{self, Beside};
use super::quantity::{self, Quantity, bytes};
use super::{chart, heap};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns.
    Table,
    /// One object.
    Json,
    /// A chart.
    Svg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Build {
    /// With the allocator that Redis and Valkey bring along.
    Bundled,
    /// With the system's jemalloc, as Debian and others build it.
    Distribution,
}

/// The names of kinds.
fn kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.iter().map(|kind| kind.name()))
        .map(|name| Kind::of_name(&name).expect("it is one of these"))
}

/// The arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A description of several kinds of data (.yaml), or a sample of records (.jsonl, .csv).
    file: Option<PathBuf>,
    /// How many keys: 700M.
    #[arg(long)]
    keys: Option<Quantity>,
    /// Their type.
    #[arg(long = "type", value_parser = kinds(), default_value = "string")]
    kind: Kind,
    /// Fields, members, items or entries of a key.
    #[arg(long, alias = "elements", alias = "members", alias = "items", alias = "entries")]
    fields: Option<u64>,
    /// The length of a key.
    #[arg(long)]
    key_bytes: Option<u64>,
    /// The length of a field's name.
    #[arg(long, default_value_t = 0)]
    field_bytes: u64,
    /// The mean length of a string, a field's value, a member or an item.
    #[arg(long)]
    value_bytes: Option<u64>,
    /// The longest value of a key, if one is longer than the others.
    #[arg(long)]
    longest_bytes: Option<u64>,
    /// The values are integers.
    #[arg(long)]
    integers: bool,
    /// The keys have a time to live.
    #[arg(long)]
    ttl: bool,
    /// Replicas of each master.
    #[arg(long, default_value_t = 1)]
    replicas: u64,
    /// How the data grows: 5%/month, 60%/year.
    #[arg(long, value_parser = quantity::growth, default_value = "0%/month")]
    growth: f64,
    /// For how many months the nodes are to do.
    #[arg(long, default_value_t = 12)]
    months: u32,
    /// The share of a node's memory that stays free.
    #[arg(long, value_parser = quantity::headroom, default_value = "30%")]
    headroom: f64,
    /// The memory of a node.
    #[arg(long, default_value = "64GB")]
    node_memory: Quantity,
    /// Bytes a second between nodes.
    #[arg(long, default_value = "1GB")]
    bandwidth: Quantity,
    /// How Redis and Valkey were built: it decides what their allocations are rounded to.
    #[arg(long, value_enum, default_value_t = Build::Bundled)]
    build: Build,
    /// As a table, as JSON, or as a chart.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

impl Options {
    fn data(&self) -> Result<Vec<Data>> {
        let keys = self.keys.map(|keys| keys.0);
        if let Some(file) = &self.file {
            return describe::read(file, Beside { keys, key_bytes: self.key_bytes, expires: self.ttl });
        }
        let (Some(keys), Some(key_bytes), Some(value_bytes)) = (keys, self.key_bytes, self.value_bytes)
        else {
            bail!("Say --keys, --key-bytes and --value-bytes, or name a file");
        };
        let kind = self.kind;
        if kind != Kind::String && self.fields.is_none_or(|fields| fields == 0) {
            bail!("Say how many --fields, --members, --items or --entries a key has");
        }
        Ok(vec![Data {
            name: kind.name().to_owned(),
            kind,
            keys,
            elements: self.fields.unwrap_or(1),
            key_bytes,
            field_bytes: self.field_bytes,
            value_bytes,
            longest_bytes: self.longest_bytes,
            expires: self.ttl,
            integers: self.integers,
        }])
    }

    fn demand(&self) -> Demand {
        let quantum = match self.build {
            Build::Bundled => capacity::allocator::REDIS,
            Build::Distribution => capacity::allocator::DEFAULT,
        };
        Demand {
            replicas: self.replicas,
            growth: (1.0 + self.growth).powf(f64::from(self.months)) - 1.0,
            headroom: self.headroom,
            node_memory: self.node_memory.0,
            bandwidth: self.bandwidth.0,
            models: Models { quantum, heap },
        }
    }
}

/// Plans and shows.
///
/// # Errors
/// Something is missing, or the file is none of data.
pub(super) fn run(options: &Options) -> Result<()> {
    let data = options.data()?;
    bound(&data)?;
    let demand = options.demand();
    let answers = plan(&data, &demand);
    let mut out = io::stdout().lock();
    match options.format {
        Format::Table => table(&data, &demand, &answers, &mut out)?,
        Format::Json => {
            let object = json!({
                "keys": data.iter().map(|data| data.keys).sum::<u64>(),
                "growth": demand.growth,
                "servers": answers,
            });
            serde_json::to_writer_pretty(&mut out, &object)?;
            writeln!(out)?;
        }
        Format::Svg => out.write_all(chart::svg(&answers).context("Cannot draw the chart")?.as_bytes())?,
    }
    Ok(())
}

/// The data that is stored to measure it must be bounded, and sums must not overflow.
fn bound(data: &[Data]) -> Result<()> {
    const LONGEST: u64 = 512 << 20;
    for data in data {
        let lengths = [data.key_bytes, data.field_bytes, data.value_bytes, data.longest()];
        if lengths.iter().any(|len| *len > LONGEST) {
            bail!("{}: no key, field or value is longer than 512 MB", data.name);
        }
        if data.elements > u64::from(u32::MAX) || data.keys > 1 << 50 {
            bail!("{}: so many there cannot be", data.name);
        }
    }
    if data.is_empty() {
        bail!("There is no data");
    }
    Ok(())
}

fn table(data: &[Data], demand: &Demand, answers: &[Answer], out: &mut impl Write) -> io::Result<()> {
    for data in data {
        let Data { name, keys, key_bytes, value_bytes, .. } = data;
        let elements = data.elements();
        writeln!(
            out,
            "{name}: {keys} keys of {key_bytes} bytes, {elements} of {value_bytes} bytes each, {} of payload a key",
            data.payload()
        )?;
    }
    write!(out, "\n{:<28}", "")?;
    answers.iter().try_for_each(|answer| write!(out, "{:>12}", answer.server))?;
    let mut row = |name: &str, of: &dyn Fn(&Answer) -> String| {
        write!(out, "\n{name:<28}")?;
        answers.iter().try_for_each(|answer| write!(out, "{:>12}", of(answer)))
    };
    row("bytes a key", &|answer| format!("{:.1}", answer.per_key.total()))?;
    row("  payload", &|answer| format!("{:.1}", answer.per_key.payload))?;
    row("  headers", &|answer| format!("{:.1}", answer.per_key.headers))?;
    row("  index", &|answer| format!("{:.1}", answer.per_key.index))?;
    row("  rounding", &|answer| format!("{:.1}", answer.per_key.rounding))?;
    row("total", &|answer| bytes(answer.total))?;
    if demand.growth > 0.0 {
        row(&format!("after growth of {:.0} %", demand.growth * 100.0), &|answer| bytes(answer.grown))?;
    }
    row("shards", &|answer| answer.shards.to_string())?;
    row("nodes", &|answer| answer.nodes.to_string())?;
    row("a node has in use", &|answer| bytes(answer.per_node))?;
    row("a full sync sends", &|answer| bytes(answer.sync_bytes))?;
    row("and takes, seconds", &|answer| format!("{:.0}", answer.sync_seconds))?;
    writeln!(out)
}
