//! The ACL command, shared by servers and sentinels.

use clock::Millis;
use resp::{Args, Writer};

use crate::category::Categories;
use crate::log::AclLog;
use crate::password::encode_hex;
use crate::selector::{AclRequest, AclSelector, Denial};
use crate::users::{DEFAULT_USER_NAME, Users};

/// The client that runs an ACL command, and the current time.
#[derive(Debug, Clone, Copy)]
pub struct AclClient<'a> {
    /// The authenticated user, whom ACL WHOAMI reports.
    pub user: &'a [u8],
    /// The current time; ages of log entries are relative to it.
    pub now: Millis,
}

/// Resolves the commands of a server or a sentinel, which this crate does not know.
pub trait CommandResolver {
    /// Returns the command, keys and channels of a request.
    ///
    /// # Errors
    /// The command does not exist or has the wrong number of arguments.
    fn resolve<'a>(&self, request: Args<'a>) -> Result<AclRequest<'a>, ResolveError>;
}

/// Why a request could not be resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolveError {
    /// No command has the requested name.
    NoSuchCommand,
    /// The request has the wrong number of arguments; holds the command's full name.
    WrongArity(String),
}

/// The change that an ACL command made to the users, for the caller to act on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserChange {
    /// The command changed no user, or failed.
    Unchanged,
    /// The user whose rules changed. The caller must disconnect this user's subscribers to channels that are no longer
    /// permitted.
    RulesChanged(Vec<u8>),
    /// The deleted users. The caller must disconnect their clients.
    UsersDeleted(Vec<Vec<u8>>),
}

/// The text of ACL HELP.
pub const HELP: &[&str] = &[
    "CAT [<category>]",
    "    Names the categories, or the commands of one.",
    "DELUSER <username> [<username> ...]",
    "    Deletes users and closes their connections.",
    "DRYRUN <username> <command> [<arg> ...]",
    "    Says whether the user may run the command, and does not run it.",
    "GETUSER <username>",
    "    Returns a user's rules.",
    "GENPASS [<bits>]",
    "    Makes up a password, of 256 bits unless told otherwise.",
    "LIST",
    "    Returns all users as lines of a configuration file.",
    "LOAD",
    "    Reads the users from the ACL file.",
    "LOG [<count> | RESET]",
    "    Returns, or forgets, what was refused lately.",
    "SAVE",
    "    Writes the users to the ACL file.",
    "SETUSER <username> <attribute> [<attribute> ...]",
    "    Makes a user, or changes one.",
    "USERS",
    "    Returns the users' names.",
    "WHOAMI",
    "    Returns this connection's user.",
];

/// The error of ACL LOAD and SAVE without an ACL file.
pub const NO_FILE_ERROR: &str = "ERR This instance is not configured to use an ACL file. You may want to specify users \
                           via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a \
                           configuration file set) in order to store users in the configuration.";

const NOT_AN_INTEGER_ERROR: &str = "ERR value is not an integer or out of range";

/// Executes `ACL subcommand ...`. `request` is the complete request, whose arity was already checked. The caller must
/// handle HELP, GENPASS, LOAD and SAVE itself, because they need more than the users.
///
/// # Errors
/// The error to reply.
pub fn execute_acl(
    users: &mut Users,
    log: &mut AclLog,
    client: AclClient<'_>,
    resolver: &impl CommandResolver,
    request: Args<'_>,
    reply: &mut Writer<'_>,
) -> Result<UserChange, String> {
    let words: Vec<&[u8]> = request.iter().skip(2).collect();
    let name = request[1].to_ascii_lowercase();
    match (name.as_slice(), words.as_slice()) {
        (b"cat", []) => reply_strings(reply, Categories::NAMES.iter().map(|(_, name)| name.as_bytes())),
        (b"cat", [category]) => run_cat(users, category, reply)?,
        (b"deluser", names) => return run_deluser(users, names, reply),
        (b"dryrun", [user, _, ..]) => run_dryrun(users, resolver, user, request.skip(3), reply)?,
        (b"getuser", [user]) => run_getuser(users, user, reply),
        (b"list", []) => {
            let lines: Vec<Vec<u8>> = users
                .iter()
                .map(|(name, user)| [b"user ", name, b" ", &user.format_rules()].concat())
                .collect();
            reply_strings(reply, lines.iter().map(Vec::as_slice));
        }
        (b"log", []) => log.reply_entries(client.now, 10, reply),
        (b"log", [word]) if word.eq_ignore_ascii_case(b"reset") => {
            log.clear();
            reply.ok();
        }
        (b"log", [count]) => {
            let count = resp::parse_i64(count).ok_or(NOT_AN_INTEGER_ERROR)?;
            log.reply_entries(client.now, usize::try_from(count).unwrap_or(0), reply);
        }
        (b"setuser", [user, rules @ ..]) => return run_setuser(users, user, rules, reply),
        (b"users", []) => reply_strings(reply, users.iter().map(|(name, _)| name)),
        (b"whoami", []) => reply.bulk(client.user),
        _ => {
            return Err(format!(
                "ERR unknown subcommand or wrong number of arguments for '{}'. Try ACL HELP.",
                String::from_utf8_lossy(&request[1][..request[1].len().min(128)])
            ));
        }
    }
    Ok(UserChange::Unchanged)
}

fn reply_strings<'a>(reply: &mut Writer<'_>, names: impl Iterator<Item = &'a [u8]> + Clone) {
    reply.array(names.clone().count());
    for name in names {
        reply.bulk(name);
    }
}

fn run_cat(users: &Users, category: &[u8], reply: &mut Writer<'_>) -> Result<(), String> {
    let Some(found) = Categories::find_by_name(category) else {
        let shown = String::from_utf8_lossy(&category[..category.len().min(128)]);
        return Err(format!("ERR Unknown category '{shown}'"));
    };
    let catalogue = users.catalogue();
    let within: Vec<&[u8]> = catalogue.in_category(found).map(|id| catalogue.name(id).as_bytes()).collect();
    reply_strings(reply, within.into_iter());
    Ok(())
}

fn run_deluser(users: &mut Users, names: &[&[u8]], reply: &mut Writer<'_>) -> Result<UserChange, String> {
    if names.contains(&DEFAULT_USER_NAME) {
        return Err("ERR The 'default' user cannot be removed".to_owned());
    }
    let gone: Vec<Vec<u8>> =
        names.iter().filter(|name| users.delete(name)).map(|name| name.to_vec()).collect();
    reply.integer(gone.len() as i64);
    Ok(if gone.is_empty() { UserChange::Unchanged } else { UserChange::UsersDeleted(gone) })
}

fn run_setuser(
    users: &mut Users,
    user: &[u8],
    rules: &[&[u8]],
    reply: &mut Writer<'_>,
) -> Result<UserChange, String> {
    users.set_rules(user, rules).map_err(|error| format!("ERR {error}"))?;
    reply.ok();
    Ok(UserChange::RulesChanged(user.to_vec()))
}

fn run_dryrun(
    users: &Users,
    resolver: &impl CommandResolver,
    user: &[u8],
    request: Args<'_>,
    reply: &mut Writer<'_>,
) -> Result<(), String> {
    // Redis prints the rule as a C string, so cut it at the first NUL.
    let shown = |bytes: &[u8]| {
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(&text[..text.len().min(128)]).into_owned()
    };
    let name = shown(user);
    let Some(user) = users.find(user) else {
        return Err(format!("ERR User '{name}' not found"));
    };
    let resolved = match resolver.resolve(request) {
        Ok(resolved) => resolved,
        Err(ResolveError::NoSuchCommand) => {
            return Err(format!("ERR Command '{}' not found", shown(&request[0])));
        }
        Err(ResolveError::WrongArity(name)) => {
            return Err(format!("ERR wrong number of arguments for '{name}' command"));
        }
    };
    let mut refused = format!("User {name} has no permissions to ").into_bytes();
    match user.check_request(&resolved) {
        Ok(()) => {
            reply.ok();
            return Ok(());
        }
        Err(Denial::Command) => {
            let command = resolved.command.map_or("", |id| users.catalogue().name(id));
            refused.extend(format!("run the '{command}' command").as_bytes());
        }
        Err(Denial::Key(place)) => {
            refused.extend([&b"access the '"[..], resolved.keys[place].name, b"' key"].concat());
        }
        Err(Denial::Channel(place)) => {
            refused.extend([&b"access the '"[..], resolved.channels[place].name, b"' channel"].concat());
        }
        Err(Denial::Database(Some(number))) => {
            refused.extend(format!("access database {number}").as_bytes());
        }
        Err(Denial::Database(None)) => refused.extend(b"access all databases"),
    }
    reply.bulk(&refused);
    Ok(())
}

/// Executes ACL GENPASS: replies the hexadecimal digits needed for the requested bits. `random` fills a
/// buffer with cryptographically secure random bytes.
///
/// # Errors
/// The error to reply.
pub fn run_genpass(
    bits: Option<&[u8]>,
    random: impl FnOnce(&mut [u8]),
    reply: &mut Writer<'_>,
) -> Result<(), &'static str> {
    let bits = match bits.map_or(Some(256), resp::parse_i64).ok_or(NOT_AN_INTEGER_ERROR)? {
        bits @ 1..=4096 => bits as usize,
        _ => {
            return Err("ERR ACL GENPASS argument must be the number of bits for the output password, a \
                        positive number up to 4096");
        }
    };
    let mut bytes = vec![0; bits.div_ceil(8)];
    random(&mut bytes);
    let digits = encode_hex(&bytes);
    reply.bulk(&digits.as_bytes()[..bits.div_ceil(4)]);
    Ok(())
}

fn run_getuser(users: &Users, name: &[u8], reply: &mut Writer<'_>) {
    let Some(user) = users.find(name) else { return reply.null() };
    reply.map(7);
    reply.bulk(b"flags");
    let flags = user.flags();
    reply.set(flags.len());
    for flag in flags {
        reply.bulk(flag.as_bytes());
    }
    reply.bulk(b"passwords");
    let passwords: Vec<String> = user.passwords().collect();
    reply_strings(reply, passwords.iter().map(String::as_bytes));
    reply_selector_rules(user.root_selector(), reply);
    reply.bulk(b"selectors");
    reply.array(user.further_selectors().len());
    for selector in user.further_selectors() {
        reply.map(4);
        reply_selector_rules(selector, reply);
    }
}

fn reply_selector_rules(selector: &AclSelector, reply: &mut Writer<'_>) {
    reply.bulk(b"commands");
    reply.bulk(selector.format_command_rules().as_bytes());
    reply.bulk(b"keys");
    reply.bulk(&selector.format_key_patterns());
    reply.bulk(b"channels");
    reply.bulk(&selector.format_channel_patterns());
    reply.bulk(b"databases");
    reply.bulk(selector.format_databases().as_bytes());
}
