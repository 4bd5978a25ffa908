//! Which connections CLIENT LIST and CLIENT KILL mean: all that fit every filter that is given. A filter with `NOT-`
//! before its name keeps those that do not fit it.

use clock::Millis;
use engine::{Client, ClientFlags, ClientKind, CommandError, Context, quoted, until_nul};

/// The property of a connection that a filter tests.
enum Fact<'a> {
    Ids(Vec<u64>),
    Kind(ClientKind),
    Address(&'a [u8]),
    LocalAddress(&'a [u8]),
    Ip(&'a [u8]),
    User(&'a [u8]),
    Name(&'a [u8]),
    Library(&'a [u8]),
    Version(&'a [u8]),
    Flags(ClientFlags),
    /// It has none of the letters.
    NoFlags,
    /// It said that it can do all of these things.
    Capable {
        redirect: bool,
    },
    Database(u16),
    /// Connected for at least so many seconds.
    Age(i64),
    /// Silent for at least so many seconds.
    Idle(i64),
}

impl Fact<'_> {
    fn is_true_of(&self, client: &Client, now: Millis) -> bool {
        match self {
            Self::Ids(ids) => ids.contains(&client.id),
            Self::Kind(kind) => client.kind() == *kind,
            Self::Address(address) => client.link.address.as_bytes() == *address,
            Self::LocalAddress(address) => client.link.local_address.as_bytes() == *address,
            Self::Ip(ip) => client.link.address.rsplit_once(':').is_some_and(|(found, _)| {
                found.trim_start_matches('[').trim_end_matches(']').as_bytes() == *ip
            }),
            Self::User(user) => client.user.lock().as_slice() == *user,
            Self::Name(name) => until_nul(&client.names.lock().name) == until_nul(name),
            Self::Library(name) => client.names.lock().library == *name,
            Self::Version(version) => client.names.lock().version == *version,
            Self::Flags(flags) => client.flags().contains(*flags),
            Self::NoFlags => !client.has_letter(),
            Self::Capable { redirect } => client.knows_redirect() || !redirect,
            Self::Database(db) => client.database() == *db,
            Self::Age(seconds) => now.0.saturating_sub(client.connected_at.0) / 1000 >= *seconds,
            Self::Idle(seconds) => client.idle(now) / 1000 >= *seconds,
        }
    }
}

/// Filters that all must fit.
pub(super) struct Filter<'a> {
    facts: Vec<(Fact<'a>, bool)>,
    /// Leaves the client itself out.
    pub(super) skips_me: bool,
}

impl<'a> Filter<'a> {
    /// The connections from one address: CLIENT KILL as it was once.
    pub(super) fn of_address(address: &'a [u8]) -> Self {
        Self { facts: vec![(Fact::Address(until_nul(address)), true)], skips_me: false }
    }

    /// The words from the third on: names of filters, each with its value.
    pub(super) fn parse(context: &Context<'a>, skips_me: bool) -> Result<Self, CommandError> {
        let mut filter = Self { facts: Vec::new(), skips_me };
        let mut index = 2;
        while index < context.args.len() {
            let word = until_nul(context.arg(index)).to_ascii_lowercase();
            let value = context.args.get(index + 1).ok_or(CommandError::Syntax)?;
            index += 2;
            match (word.as_slice(), until_nul(value).to_ascii_lowercase().as_slice()) {
                (b"skipme", b"yes") => filter.skips_me = true,
                (b"skipme", b"no") => filter.skips_me = false,
                _ => {
                    let (name, fits) = match word.strip_prefix(b"not-") {
                        Some(name) => (name, false),
                        None => (word.as_slice(), true),
                    };
                    let fact = match name {
                        b"id" => parse_ids(context, value, &mut index)?,
                        b"maxage" | b"idle" if !fits => return Err(CommandError::Syntax),
                        _ => parse_fact(context, name, value, fits)?,
                    };
                    filter.facts.push((fact, fits));
                }
            }
        }
        Ok(filter)
    }

    pub(super) fn wants(&self, client: &Client, me: u64, now: Millis) -> bool {
        let fits = |(fact, wanted): &(Fact<'_>, bool)| fact.is_true_of(client, now) == *wanted;
        !(self.skips_me && client.id == me) && self.facts.iter().all(fits)
    }
}

/// A number, and all that follow it.
fn parse_ids<'a>(context: &Context<'a>, first: &[u8], index: &mut usize) -> Result<Fact<'a>, CommandError> {
    let mut ids = Vec::new();
    let mut number = Some(resp::parse_i64(first).ok_or(CommandError::Syntax)?);
    while let Some(id) = number {
        let id = u64::try_from(id).ok().filter(|id| *id > 0);
        ids.push(id.ok_or(CommandError::text("ERR client-id should be greater than 0"))?);
        number = context.args.get(*index).and_then(resp::parse_i64);
        *index += usize::from(number.is_some());
    }
    Ok(Fact::Ids(ids))
}

pub(super) fn parse_kind(name: &[u8]) -> Result<ClientKind, CommandError> {
    ClientKind::parse(until_nul(name)).ok_or_else(|| {
        let text = format!("ERR Unknown client type '{}'", quoted(name, name.len()));
        CommandError::Text(text.into())
    })
}

/// `fits`: whether it is to be true.
fn parse_fact<'a>(
    context: &Context<'a>,
    name: &[u8],
    value: &'a [u8],
    fits: bool,
) -> Result<Fact<'a>, CommandError> {
    Ok(match name {
        b"type" => Fact::Kind(parse_kind(value)?),
        b"addr" => Fact::Address(until_nul(value)),
        b"laddr" => Fact::LocalAddress(until_nul(value)),
        b"ip" => Fact::Ip(until_nul(value)),
        b"user" => {
            if context.engine.users.read().find(value).is_none() {
                let text = format!("ERR No such user '{}'", quoted(value, value.len()));
                return Err(CommandError::Text(text.into()));
            }
            Fact::User(value)
        }
        b"name" => Fact::Name(value),
        b"lib-name" => Fact::Library(value),
        b"lib-ver" => Fact::Version(value),
        b"flags" => parse_flags(until_nul(value), fits)?,
        b"capa" => {
            let letters = until_nul(value);
            check_letters("capa", letters, fits, |letter| letter == b'r')?;
            Fact::Capable { redirect: !letters.is_empty() }
        }
        b"db" => {
            let name = if fits { "DB" } else { "NOT-DB" };
            let number = resp::parse_i64(value).ok_or_else(|| {
                CommandError::Text(format!("ERR {name} is not an integer or out of range").into())
            })?;
            let databases = context.engine.keyspace.databases();
            let db = u16::try_from(number).ok().filter(|db| *db < databases).ok_or_else(|| {
                let last = databases - 1;
                CommandError::Text(format!("ERR {name} number should be between 0 and {last}").into())
            })?;
            Fact::Database(db)
        }
        b"maxage" => Fact::Age(parse_seconds("maxage", value)?),
        b"idle" => Fact::Idle(parse_seconds("idle", value)?),
        _ => return Err(CommandError::Syntax),
    })
}

fn parse_seconds(name: &str, value: &[u8]) -> Result<i64, CommandError> {
    let fail = |what: &str| CommandError::Text(format!("ERR {name} {what}").into());
    match resp::parse_i64(value) {
        None => Err(fail("is not an integer or out of range")),
        Some(seconds) if seconds <= 0 => Err(fail("should be greater than 0")),
        Some(seconds) => Ok(seconds),
    }
}

fn check_letters(
    what: &str,
    letters: &[u8],
    fits: bool,
    known: impl Fn(u8) -> bool,
) -> Result<(), CommandError> {
    let unknown: Vec<u8> = letters.iter().copied().filter(|letter| !known(*letter)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let filter = if fits { "provided".to_owned() } else { format!("NOT-{}", what.to_ascii_uppercase()) };
    let text =
        format!("ERR Unknown {what} found in the {filter} filter: {}", quoted(&unknown, unknown.len()));
    Err(CommandError::Text(text.into()))
}

/// Letters as CLIENT LIST shows them.
fn parse_flags<'a>(letters: &[u8], fits: bool) -> Result<Fact<'a>, CommandError> {
    check_letters("flags", letters, fits, |letter| {
        letter == b'N' || ClientFlags::of_letter(letter).is_some()
    })?;
    let flags: ClientFlags = letters.iter().filter_map(|letter| ClientFlags::of_letter(*letter)).collect();
    Ok(if flags.is_empty() { Fact::NoFlags } else { Fact::Flags(flags) })
}
