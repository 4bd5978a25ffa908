//! COMMAND: introspection of the command table.

use engine::{
    BeginSearch, Categories, CommandError, Context, FindKeys, Flags, KeyFlags, KeySpec, RegisteredCommand,
    Registry,
};
use resp::{Args, Writer};

use super::docs::docs;
use crate::help::write_help;

/// Flags that COMMAND shows, with Redis's names for them.
const FLAG_NAMES: &[(Flags, &str)] = &[
    (Flags::WRITE, "write"),
    (Flags::READONLY, "readonly"),
    (Flags::DENYOOM, "denyoom"),
    (Flags::ADMIN, "admin"),
    (Flags::PUBSUB, "pubsub"),
    (Flags::NOSCRIPT, "noscript"),
    (Flags::BLOCKING, "blocking"),
    (Flags::LOADING, "loading"),
    (Flags::STALE, "stale"),
    (Flags::SKIP_MONITOR, "skip_monitor"),
    (Flags::SKIP_COMMANDLOG, "skip_commandlog"),
    (Flags::ASKING, "asking"),
    (Flags::FAST, "fast"),
    (Flags::NO_AUTH, "no_auth"),
    (Flags::NO_MANDATORY_KEYS, "no_mandatory_keys"),
    (Flags::NO_ASYNC_LOADING, "no_async_loading"),
    (Flags::NO_MULTI, "no_multi"),
    (Flags::ALLOW_BUSY, "allow_busy"),
];

const KEY_FLAG_NAMES: &[(KeyFlags, &str)] = &[
    (KeyFlags::RO, "RO"),
    (KeyFlags::RW, "RW"),
    (KeyFlags::OW, "OW"),
    (KeyFlags::RM, "RM"),
    (KeyFlags::ACCESS, "access"),
    (KeyFlags::UPDATE, "update"),
    (KeyFlags::INSERT, "insert"),
    (KeyFlags::DELETE, "delete"),
    (KeyFlags::NOT_KEY, "not_key"),
    (KeyFlags::INCOMPLETE, "incomplete"),
    (KeyFlags::VARIABLE_FLAGS, "variable_flags"),
];

/// Handles COMMAND and its subcommands.
pub(super) fn command(context: &mut Context<'_>) -> Result<(), CommandError> {
    execute_command(context.commands.registry(), context.args, &mut context.reply)
}

/// Executes COMMAND or one of its subcommands for the commands of this registry. The caller has checked the subcommand
/// and its arity.
///
/// # Errors
/// An error reply for invalid arguments.
pub fn execute_command(
    registry: &Registry,
    args: Args<'_>,
    reply: &mut Writer<'_>,
) -> Result<(), CommandError> {
    let subcommand = args.get(1).map(<[u8]>::to_ascii_lowercase);
    match subcommand.as_deref() {
        None => reply_all_commands(registry, reply),
        Some(b"count") => reply.integer(registry.top_level().len() as i64),
        Some(b"docs") => docs(registry, args, reply),
        Some(b"getkeys") => return getkeys(registry, args, reply),
        Some(b"getkeysandflags") => return getkeys_and_flags(registry, args, reply),
        Some(b"info") => reply_info(registry, args, reply),
        Some(b"list") => return reply_command_names(registry, args, reply),
        _ => write_help(reply, "COMMAND", HELP),
    }
    Ok(())
}

fn reply_all_commands(registry: &Registry, reply: &mut Writer<'_>) {
    reply.array(registry.top_level().len());
    for entry in registry.top_level() {
        reply_command(reply, entry);
    }
}

fn reply_info(registry: &Registry, args: Args<'_>, reply: &mut Writer<'_>) {
    if args.len() == 2 {
        return reply_all_commands(registry, reply);
    }
    reply.array(args.len() - 2);
    for name in args.skip(2).iter() {
        match registry.find_by_full_name(name) {
            Some(entry) => reply_command(reply, entry),
            None => reply.null(),
        }
    }
}

/// Replies with a RESP set: the names of the flags in `table` for which `is_set` returns true, then the `extra` names.
fn reply_flag_names<F: Copy>(
    reply: &mut Writer<'_>,
    table: &[(F, &'static str)],
    prefix: &str,
    is_set: impl Fn(F) -> bool,
    extra: &[&str],
) {
    let held =
        || table.iter().filter(|(flag, _)| is_set(*flag)).map(|(_, name)| *name).chain(extra.iter().copied());
    reply.set(held().count());
    for name in held() {
        reply.simple(&format!("{prefix}{name}"));
    }
}

fn reply_command(reply: &mut Writer<'_>, entry: &RegisteredCommand) {
    let command = entry.command;
    let range = LegacyKeyRange::from_specs(command.keys);
    reply.array(10);
    reply.bulk(entry.full_name.as_bytes());
    reply.integer(command.arity.into());
    let movable: &[&str] = if range.has_other_keys { &["movablekeys"] } else { &[] };
    reply_flag_names(reply, FLAG_NAMES, "", |flag| command.flags.contains(flag), movable);
    reply.integer(range.first_key);
    reply.integer(range.last_key);
    reply.integer(range.key_step);
    let categories = command.categories();
    reply_flag_names(reply, Categories::NAMES, "@", |category| categories.contains(category), &[]);
    reply.set(command.tips.len());
    for tip in command.tips {
        reply.bulk(tip.as_bytes());
    }
    reply.set(command.keys.len());
    for spec in command.keys {
        reply_key_spec(reply, spec);
    }
    let subcommands = entry.subcommands();
    reply.array(subcommands.len());
    for entry in subcommands {
        reply_command(reply, entry);
    }
}

/// The key range of the original COMMAND reply: first, last (negative from the end), step.
#[derive(Debug, Default, PartialEq, Eq)]
struct LegacyKeyRange {
    first_key: i64,
    last_key: i64,
    key_step: i64,
    /// Whether the command has keys that the legacy range does not cover.
    has_other_keys: bool,
}

impl LegacyKeyRange {
    fn from_specs(specs: &[KeySpec]) -> Self {
        let mut range = Self::default();
        for spec in specs {
            let (BeginSearch::Index(begin), FindKeys::Range { last_key_position: last, step, .. }) =
                (spec.search_start, spec.find_keys)
            else {
                range.has_other_keys = true;
                continue;
            };
            let begin = i64::from(begin);
            let last = if last >= 0 { begin + i64::from(last) } else { i64::from(last) };
            if range.first_key == 0 {
                range = Self { first_key: begin, last_key: last, key_step: step.into(), ..range };
            } else if range.last_key == begin - 1 {
                range.last_key = last;
            }
        }
        range
    }
}

fn reply_key_spec(reply: &mut Writer<'_>, spec: &KeySpec) {
    reply.map(3);
    reply.bulk(b"flags");
    reply_flag_names(reply, KEY_FLAG_NAMES, "", |flag| spec.flags.contains(flag), &[]);
    reply.bulk(b"begin_search");
    let is_unknown = spec.search_start == BeginSearch::Unknown;
    match spec.search_start {
        BeginSearch::Unknown => begin_typed_map(reply, "unknown", 0),
        BeginSearch::Index(index) => {
            begin_typed_map(reply, "index", 1);
            reply_number(reply, "index", index.into());
        }
        BeginSearch::Keyword { word, search_from: from } => {
            begin_typed_map(reply, "keyword", 2);
            reply.bulk(b"keyword");
            reply.bulk(word.as_bytes());
            reply_number(reply, "startfrom", from.into());
        }
    }
    reply.bulk(b"find_keys");
    if is_unknown {
        return begin_typed_map(reply, "unknown", 0);
    }
    match spec.find_keys {
        FindKeys::Range { last_key_position: last, step, limit } => {
            begin_typed_map(reply, "range", 3);
            reply_number(reply, "lastkey", last.into());
            reply_number(reply, "keystep", step.into());
            reply_number(reply, "limit", limit.into());
        }
        FindKeys::KeyNum { count_position: count_at, first_key_position: first, step } => {
            begin_typed_map(reply, "keynum", 3);
            reply_number(reply, "keynumidx", count_at.into());
            reply_number(reply, "firstkey", first.into());
            reply_number(reply, "keystep", step.into());
        }
    }
}

/// Begins a part of a key spec: its type and a map of `fields` pairs.
fn begin_typed_map(reply: &mut Writer<'_>, kind: &str, fields: usize) {
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(kind.as_bytes());
    reply.bulk(b"spec");
    reply.map(fields);
}

fn reply_number(reply: &mut Writer<'_>, name: &str, value: i64) {
    reply.bulk(name.as_bytes());
    reply.integer(value);
}

/// Handles `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`.
fn reply_command_names(
    registry: &Registry,
    args: Args<'_>,
    reply: &mut Writer<'_>,
) -> Result<(), CommandError> {
    let wanted: Box<dyn Fn(&RegisteredCommand) -> bool> =
        match (args.len(), args.get(2), args.get(3), args.get(4)) {
            (2, ..) => Box::new(|_| true),
            (5, Some(word), Some(kind), Some(value)) if word.eq_ignore_ascii_case(b"filterby") => {
                if kind.eq_ignore_ascii_case(b"module") {
                    Box::new(|_| false)
                } else if kind.eq_ignore_ascii_case(b"aclcat") {
                    let category = Categories::find_by_name(value);
                    Box::new(move |entry| {
                        category.is_some_and(|category| entry.command.categories().contains(category))
                    })
                } else if kind.eq_ignore_ascii_case(b"pattern") {
                    let pattern = value.to_ascii_lowercase();
                    Box::new(move |entry| glob::matches(&pattern, entry.full_name.as_bytes()))
                } else {
                    return Err(CommandError::Syntax);
                }
            }
            _ => return Err(CommandError::Syntax),
        };
    let names: Vec<_> = registry.listed_commands().filter(|entry| wanted(entry)).collect();
    reply.array(names.len());
    for entry in names {
        reply.bulk(entry.full_name.as_bytes());
    }
    Ok(())
}

/// Parses the request in the remaining arguments and returns the positions and flags of its keys.
fn parse_keys<'a>(
    registry: &Registry,
    args: Args<'a>,
) -> Result<(Args<'a>, Vec<(usize, KeyFlags)>), CommandError> {
    let request = args.skip(2);
    let entry = registry.resolve(request);
    // COMMAND treats DEBUG as a single command without keys.
    let is_shown = |entry: &RegisteredCommand| {
        registry.listed_commands().any(|known| std::ptr::eq(known.command, entry.command))
    };
    let has_keys = |entry: &RegisteredCommand| {
        is_shown(entry) && entry.command.keys.iter().any(|spec| !spec.flags.contains(KeyFlags::NOT_KEY))
    };
    let command = match &entry {
        Ok(entry) if has_keys(entry) => entry.command,
        Ok(_) => return Err(CommandError::text("ERR The command has no key arguments")),
        Err(_) => return Err(CommandError::text("ERR Invalid command specified")),
    };
    if !command.accepts_word_count(request.len()) {
        return Err(CommandError::text("ERR Invalid number of arguments specified for command"));
    }
    let mut found = Vec::new();
    command.visit_keys(request, &mut |index, flags| found.push((index, flags)));
    // As in Valkey, an invalid number of keys or a key spec that finds no keys is an error even if another spec finds a
    // key. Examples are ZUNIONSTORE, and PFMERGE without a source, although PFMERGE itself accepts that.
    let is_required = |spec: &KeySpec| {
        matches!(spec.find_keys, FindKeys::KeyNum { .. })
            || matches!(spec.search_start, BeginSearch::Index(_))
    };
    let is_missing = command.keys.iter().any(|spec| is_required(spec) && !spec.finds_keys(request));
    if (found.is_empty() || is_missing) && !command.flags.contains(Flags::NO_MANDATORY_KEYS) {
        return Err(CommandError::text("ERR Invalid arguments specified for command"));
    }
    Ok((request, found))
}

fn getkeys(registry: &Registry, args: Args<'_>, reply: &mut Writer<'_>) -> Result<(), CommandError> {
    let (request, keys) = parse_keys(registry, args)?;
    reply.array(keys.len());
    for (index, _) in keys {
        reply.bulk(&request[index]);
    }
    Ok(())
}

fn getkeys_and_flags(
    registry: &Registry,
    args: Args<'_>,
    reply: &mut Writer<'_>,
) -> Result<(), CommandError> {
    let (request, keys) = parse_keys(registry, args)?;
    reply.array(keys.len());
    for (index, flags) in keys {
        reply.array(2);
        reply.bulk(&request[index]);
        reply_flag_names(reply, KEY_FLAG_NAMES, "", |flag| flags.contains(flag), &[]);
    }
    Ok(())
}

const HELP: &[&str] = &[
    "(no subcommand)",
    "    Returns facts about all commands.",
    "COUNT",
    "    Returns the number of commands.",
    "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
    "    Returns the names of commands.",
    "INFO [<command-name> ...]",
    "    Returns facts about some commands, or all.",
    "DOCS [<command-name> ...]",
    "    Returns what some commands are for, or all.",
    "GETKEYS <full-command>",
    "    Returns the keys of a request.",
    "GETKEYSANDFLAGS <full-command>",
    "    Returns the keys of a request and what it does with them.",
];

#[cfg(test)]
mod tests {

    use crate::testing::Client;

    /// GET and LCS as described by Redis 7.0.15, with this server's key flags.
    const GET_INFO_REPLY: &str = "*10|$3|get|:2|*2|+readonly|+fast|:1|:1|:1|*3|+@read|+@string|+@fast|*0|*1|*6|$5|flags|*2\
                       |+RO|+access|$12|begin_search|*4|$4|type|$5|index|$4|spec|*2|$5|index|:1|$9|find_keys\
                       |*4|$4|type|$5|range|$4|spec|*6|$7|lastkey|:0|$7|keystep|:1|$5|limit|:0|*0";

    #[test]
    fn command_info_matches_redis() {
        let mut client = Client::new();
        client.check_replies(&[
            ("command info get nosuch", &format!("*2|{GET_INFO_REPLY}|$-1")),
            ("command info get|x", "*1|$-1"),
            ("command info debug|digest debug|nosuch", "*2|$-1|$-1"),
            ("command docs debug|digest", "*0"),
            ("command count", &format!(":{}", crate::server_registry().top_level().len())),
            ("command foo", "-ERR unknown subcommand 'foo'. Try COMMAND HELP."),
            ("command docs nosuch", "*0"),
        ]);
        assert!(client.run_to_text("command info lcs").contains(":1\r\n:2\r\n:1\r\n"), "the keys' old form");
        assert!(client.run_to_text("command info rename").contains(":1\r\n:2\r\n:1\r\n"));
        assert!(client.run_to_text("command info msetex").contains("+movablekeys\r\n:0\r\n:0\r\n:0\r\n"));
        let resp3 =
            GET_INFO_REPLY.replace("*2|+RO", "~2|+RO").replace("*2|+read", "~2|+read").replace("*3|", "~3|");
        let resp3 = resp3.replace("*6", "%3").replace("*4|", "%2|").replace("*2|$5", "%1|$5");
        // In RESP3, tips and keys are sets. Subcommands are an array even when there are none.
        let resp3 = resp3.replacen("*0", "~0", 1).replace("*1|%3", "~1|%3");
        client.check_replies(&[("hello 3", &hello_reply())]);
        client.check_replies(&[("command info get", &format!("*1|{resp3}"))]);
        let whole = client.run_to_text("command");
        assert!(whole.starts_with(&format!("*{}\r\n*10\r\n", crate::server_registry().top_level().len())));
    }

    fn hello_reply() -> String {
        "%7|$6|server|$5|redis|$7|version|$5|7.4.0|$5|proto|:3|$2|id|:1|$4|mode|$10|standalone|$4|role\
         |$6|master|$7|modules|*0"
            .to_owned()
    }

    #[test]
    fn command_getkeys_returns_keys() {
        Client::new().check_replies(&[
            ("command getkeys mset a 1 b 2", "*2|$1|a|$1|b"),
            ("command getkeys object encoding k", "*1|$1|k"),
            ("command getkeysandflags set k v", "*1|*2|$1|k|*2|+OW|+update"),
            ("command getkeysandflags set k v get", "*1|*2|$1|k|*3|+RW|+access|+update"),
            ("command getkeys nosuch a", "-ERR Invalid command specified"),
            ("command getkeys ping a", "-ERR The command has no key arguments"),
            ("command getkeys get a b", "-ERR Invalid number of arguments specified for command"),
            ("command getkeys migrate h 1 k 0 10", "*1|$1|k"),
            ("command getkeys migrate h 1 \"\" 0 10", "*1|$0|"),
            ("command getkeys migrate h 1 \"\" 0 10 keys a b", "*2|$1|a|$1|b"),
            ("command getkeys migrate h 1 k 0 10 keys a b", "-ERR Invalid arguments specified for command"),
            ("command getkeys migrate h 1 \"\" 0 10 auth keys keys a b", "*2|$1|a|$1|b"),
            ("command getkeys migrate h 1 \"\" 0 10 auth2 keys keys copy keys a", "*1|$1|a"),
            ("command getkeys migrate h 1 k 0 10 auth keys", "*1|$1|k"),
            ("command getkeys georadius k 1 2 3 km store a storedist b", "*2|$1|k|$1|b"),
            (
                "command getkeysandflags georadius k 1 2 3 km store a",
                "*2|*2|$1|k|*2|+RO|+access|*2|$1|a|*2|+OW|+update",
            ),
            ("command getkeys xreadgroup count 1 group g streams streams no >", "*1|$2|no"),
            ("command getkeys xreadgroup group streams c noack streams a b 0 0", "*2|$1|a|$1|b"),
            ("command getkeys sort k by store get store store d", "*2|$1|k|$1|d"),
            ("command getkeys sort k store d limit store 1 STORE e", "*2|$1|k|$1|e"),
            ("command getkeys sort k store", "*1|$1|k"),
            ("command getkeys copy db x db 2", "*2|$2|db|$1|x"),
            ("command getkeys msetex 9 a b", "-ERR Invalid arguments specified for command"),
            ("command getkeys zunionstore d 2 a b", "*3|$1|d|$1|a|$1|b"),
            ("command getkeys pfmerge d", "-ERR Invalid arguments specified for command"),
            ("command getkeysandflags pfmerge d", "-ERR Invalid arguments specified for command"),
            ("command getkeys pfmerge d s", "*2|$1|d|$1|s"),
            ("command getkeys zunionstore d 5 a", "-ERR Invalid arguments specified for command"),
            ("command getkeys zunionstore d 99999999999 a", "-ERR Invalid arguments specified for command"),
            ("command getkeysandflags zdiffstore d 0 a", "-ERR Invalid arguments specified for command"),
            ("command getkeys debug object k", "-ERR The command has no key arguments"),
            ("command getkeysandflags debug digest-value k", "-ERR The command has no key arguments"),
        ]);
    }

    #[test]
    fn command_list_filters_names() {
        let mut client = Client::new();
        client.check_replies(&[
            ("command list filterby pattern incr*", "*4|$4|incr|$6|incrby|$11|incrbyfloat|$6|increx"),
            ("command list filterby aclcat nosuch", "*0"),
            ("command list filterby module nosuch", "*0"),
            ("command list filterby nosuch x", "-ERR syntax error"),
            ("command list nosuch", "-ERR syntax error"),
        ]);
        assert!(client.run_to_text("command list filterby aclcat string").contains("incrbyfloat"));
        let all = client.run_to_text("command list");
        assert!(all.starts_with(&format!("*{}\r\n", crate::server_registry().listed_commands().count())));
        assert!(all.contains("\r\nconfig|get\r\n") && !all.contains("debug|"), "DEBUG is one command");
    }

    #[test]
    fn command_table_is_consistent() {
        for entry in crate::server_registry().commands() {
            let command = entry.command;
            assert_eq!(command.name, command.name.to_ascii_lowercase());
            assert!(command.arity != 0, "{}", entry.full_name);
            assert!(!command.summary.is_empty() && command.summary.ends_with('.'), "{}", entry.full_name);
            let found = crate::server_registry()
                .find_by_full_name(entry.full_name.as_bytes())
                .expect("found by its name");
            assert_eq!(found.index, entry.index);
        }
    }
}
