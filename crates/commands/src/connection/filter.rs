//! Filters of CLIENT LIST and CLIENT KILL. A connection is selected if it matches every filter. The prefix `NOT-`
//! inverts a filter.

use clock::Millis;
use engine::{Client, ClientFlags, ClientKind, CommandError, Context, quote, truncate_at_nul};

/// The property of a connection that a filter tests.
enum ClientProperty<'a> {
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
    /// The connection has none of the flag letters, which CLIENT LIST shows as `N`.
    NoFlags,
    /// The client announced all of these capabilities.
    Capabilities {
        redirect: bool,
    },
    Database(u16),
    /// Minimum age of the connection, in seconds.
    Age(i64),
    /// Minimum idle time of the connection, in seconds.
    Idle(i64),
}

impl ClientProperty<'_> {
    fn matches(&self, client: &Client, now: Millis) -> bool {
        match self {
            Self::Ids(ids) => ids.contains(&client.id),
            Self::Kind(kind) => client.kind() == *kind,
            Self::Address(address) => client.connection.address.as_bytes() == *address,
            Self::LocalAddress(address) => client.connection.local_address.as_bytes() == *address,
            Self::Ip(ip) => client.connection.address.rsplit_once(':').is_some_and(|(found, _)| {
                found.trim_start_matches('[').trim_end_matches(']').as_bytes() == *ip
            }),
            Self::User(user) => client.user.lock().as_slice() == *user,
            Self::Name(name) => truncate_at_nul(&client.names.lock().name) == truncate_at_nul(name),
            Self::Library(name) => client.names.lock().library == *name,
            Self::Version(version) => client.names.lock().version == *version,
            Self::Flags(flags) => client.flags().contains(*flags),
            Self::NoFlags => !client.has_flag_letter(),
            Self::Capabilities { redirect } => client.supports_redirect() || !redirect,
            Self::Database(db) => client.database() == *db,
            Self::Age(seconds) => now.0.saturating_sub(client.connected_at.0) / 1000 >= *seconds,
            Self::Idle(seconds) => client.idle_millis(now) / 1000 >= *seconds,
        }
    }
}

/// One filter argument.
struct ClientFilter<'a> {
    /// The filter's name in lower case, including the prefix `not-` if it is present.
    name: Vec<u8>,
    property: ClientProperty<'a>,
    /// Whether the property must match; `false` for a `NOT-` filter.
    must_match: bool,
}

/// A conjunction of filters. If a filter is repeated, the last one wins, except that client ids accumulate.
pub(super) struct ClientFilters<'a> {
    filters: Vec<ClientFilter<'a>>,
    /// Whether the calling client is never selected (SKIPME).
    pub(super) excludes_caller: bool,
}

impl<'a> ClientFilters<'a> {
    /// Selects the connection with this address, as the old form `CLIENT KILL address` does.
    pub(super) fn by_address(address: &'a [u8]) -> Self {
        let fact = ClientProperty::Address(truncate_at_nul(address));
        Self {
            filters: vec![ClientFilter { name: b"addr".to_vec(), property: fact, must_match: true }],
            excludes_caller: false,
        }
    }

    /// Parses the filters, pairs of a name and a value, from argument 2 on.
    pub(super) fn parse(context: &Context<'a>, excludes_caller: bool) -> Result<Self, CommandError> {
        let mut filter = Self { filters: Vec::new(), excludes_caller };
        let mut index = 2;
        while index < context.args.len() {
            let word = truncate_at_nul(context.arg(index)).to_ascii_lowercase();
            let (name, expected) = match word.strip_prefix(b"not-") {
                Some(name) => (name, false),
                None => (word.as_slice(), true),
            };
            // As in Valkey, ID without a value is accepted unless it is the only argument.
            if name == b"id" && context.args.len() > 3 {
                index += 1;
                let fact = parse_ids(context, &mut index)?;
                filter.add_or_merge(ClientFilter { name: word, property: fact, must_match: expected });
                continue;
            }
            let value = context.args.get(index + 1).ok_or(CommandError::Syntax)?;
            index += 2;
            match (word.as_slice(), truncate_at_nul(value).to_ascii_lowercase().as_slice()) {
                (b"skipme", b"yes") => filter.excludes_caller = true,
                (b"skipme", b"no") => filter.excludes_caller = false,
                (b"not-maxage" | b"not-idle", _) => return Err(CommandError::Syntax),
                _ => {
                    let fact = parse_property(context, name, value, expected)?;
                    filter.add_or_merge(ClientFilter { name: word, property: fact, must_match: expected });
                }
            }
        }
        Ok(filter)
    }

    fn add_or_merge(&mut self, filter: ClientFilter<'a>) {
        match self.filters.iter_mut().find(|before| before.name == filter.name) {
            Some(ClientFilter { property: ClientProperty::Ids(before), .. }) => {
                if let ClientProperty::Ids(more) = filter.property {
                    before.extend(more);
                }
            }
            Some(before) => *before = filter,
            None => self.filters.push(filter),
        }
    }

    pub(super) fn matches(&self, client: &Client, caller_id: u64, now: Millis) -> bool {
        let expected = |it: &ClientFilter<'_>| it.property.matches(client, now) == it.must_match;
        !(self.excludes_caller && client.id == caller_id) && self.filters.iter().all(expected)
    }
}

/// Parses all consecutive numbers as client ids.
fn parse_ids<'a>(context: &Context<'a>, index: &mut usize) -> Result<ClientProperty<'a>, CommandError> {
    let mut ids = Vec::new();
    while let Some(id) = context.args.get(*index).and_then(resp::parse_i64) {
        let id = u64::try_from(id).ok().filter(|id| *id > 0);
        ids.push(id.ok_or(CommandError::text("ERR client-id should be greater than 0"))?);
        *index += 1;
    }
    Ok(ClientProperty::Ids(ids))
}

pub(super) fn parse_kind(name: &[u8]) -> Result<ClientKind, CommandError> {
    ClientKind::parse(truncate_at_nul(name)).ok_or_else(|| {
        let text = format!("ERR Unknown client type '{}'", quote(name, name.len()));
        CommandError::Text(text.into())
    })
}

/// Parses the value of one filter. `expected` is false for a `NOT-` filter.
fn parse_property<'a>(
    context: &Context<'a>,
    name: &[u8],
    value: &'a [u8],
    expected: bool,
) -> Result<ClientProperty<'a>, CommandError> {
    Ok(match name {
        b"type" => ClientProperty::Kind(parse_kind(value)?),
        b"addr" => ClientProperty::Address(truncate_at_nul(value)),
        b"laddr" => ClientProperty::LocalAddress(truncate_at_nul(value)),
        b"ip" => ClientProperty::Ip(truncate_at_nul(value)),
        b"user" => {
            if context.engine.access.users.read().find(value).is_none() {
                let text = format!("ERR No such user '{}'", quote(value, value.len()));
                return Err(CommandError::Text(text.into()));
            }
            ClientProperty::User(value)
        }
        b"name" => ClientProperty::Name(value),
        b"lib-name" => ClientProperty::Library(value),
        b"lib-ver" => ClientProperty::Version(value),
        b"flags" => parse_flags(truncate_at_nul(value), expected)?,
        b"capa" => {
            let letters = truncate_at_nul(value);
            check_flag_letters("capa", letters, expected, |letter| letter == b'r')?;
            ClientProperty::Capabilities { redirect: !letters.is_empty() }
        }
        b"db" => {
            let name = if expected { "DB" } else { "NOT-DB" };
            let number = resp::parse_i64(value).ok_or_else(|| {
                CommandError::Text(format!("ERR {name} is not an integer or out of range").into())
            })?;
            let databases = context.engine.keyspace.database_count();
            let db = u16::try_from(number).ok().filter(|db| *db < databases).ok_or_else(|| {
                let last = databases - 1;
                CommandError::Text(format!("ERR {name} number should be between 0 and {last}").into())
            })?;
            ClientProperty::Database(db)
        }
        b"maxage" => ClientProperty::Age(parse_seconds("maxage", value)?),
        b"idle" => ClientProperty::Idle(parse_seconds("idle", value)?),
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

fn check_flag_letters(
    letter_kind: &str,
    letters: &[u8],
    expected: bool,
    known: impl Fn(u8) -> bool,
) -> Result<(), CommandError> {
    let unknown: Vec<u8> = letters.iter().copied().filter(|letter| !known(*letter)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let filter =
        if expected { "provided".to_owned() } else { format!("NOT-{}", letter_kind.to_ascii_uppercase()) };
    let text =
        format!("ERR Unknown {letter_kind} found in the {filter} filter: {}", quote(&unknown, unknown.len()));
    Err(CommandError::Text(text.into()))
}

/// Parses flag letters as shown in CLIENT LIST.
fn parse_flags<'a>(letters: &[u8], expected: bool) -> Result<ClientProperty<'a>, CommandError> {
    check_flag_letters("flags", letters, expected, |letter| {
        letter == b'N' || ClientFlags::from_letter(letter).is_some()
    })?;
    let flags: ClientFlags = letters.iter().filter_map(|letter| ClientFlags::from_letter(*letter)).collect();
    Ok(if flags.is_empty() { ClientProperty::NoFlags } else { ClientProperty::Flags(flags) })
}

#[cfg(test)]
mod tests {
    use engine::ConnectionInfo;

    use crate::testing::Client;

    /// The expected replies are those of Valkey 9.1.2: a repeated filter replaces the earlier one, but client ids
    /// accumulate.
    #[test]
    fn last_repeated_filter_wins_and_ids_accumulate() {
        let mut client = Client::new();
        // This connection takes client id 1, so that the test client gets another id.
        drop(client.engine.clients.connect(ConnectionInfo::default(), client.now, Box::new(|| ())));
        for name in ["x", "y", "z"] {
            let other = client.engine.clients.connect(ConnectionInfo::default(), client.now, Box::new(|| ()));
            other.names.lock().name = name.as_bytes().to_vec();
            other.names.lock().library = b"lib".to_vec();
        }
        let names = [(1, "x"), (2, "y"), (3, "z")];
        let first = client.engine.clients.list().iter().map(|client| client.id).max().unwrap_or(0) - 3;
        let ids = names.map(|(number, _)| first + number);
        for (filter, listed) in [
            ("name x name y", "y"),
            ("name x not-name x", ""),
            ("not-name x not-name y lib-name lib", "xz"),
            ("NAME x Name y", "y"),
            ("lib-name nosuch lib-name lib", "xyz"),
            (&format!("id {} id {}", ids[0], ids[2]), "xz"),
            (&format!("id {} {} id {}", ids[0], ids[1], ids[2]), "xyz"),
            (&format!("not-id {} not-id {} lib-name lib", ids[0], ids[2]), "y"),
            (&format!("id {} not-id {}", ids[0], ids[0]), ""),
            (&format!("id {} id", ids[0]), "x"),
            ("name x id", ""),
            ("name x not-id", "x"),
            ("type pubsub type normal lib-name lib", "xyz"),
            ("flags P flags N lib-name lib", "xyz"),
        ] {
            let reply = client.run_to_text(&format!("client list {filter}"));
            let found: String = names
                .iter()
                .map(|(_, name)| *name)
                .filter(|name| reply.contains(&format!(" name={name} ")))
                .collect();
            assert_eq!(found, listed, "{filter}");
        }
        client.check_replies(&[
            (&format!("client kill id {} id {}", ids[0], ids[1]), ":2"),
            ("client kill name nosuch name z", ":1"),
        ]);
    }
}
