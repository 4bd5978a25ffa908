//! The arguments of MIGRATE.

use std::ops::Range;
use std::time::Duration;

use resp::Args;

/// Timeout that replaces a timeout of zero or below, as in Redis.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
const NOT_INTEGER_ERROR: &str = "ERR value is not an integer or out of range";
const SYNTAX_ERROR: &str = "ERR syntax error";

/// The target of a migration: server, database and credentials.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    /// The server's host name or address.
    pub host: String,
    /// The server's port, as given by the client.
    pub port: String,
    /// The database number.
    pub db: i64,
    /// The arguments after AUTH or AUTH2; empty without authentication.
    pub auth: Vec<Vec<u8>>,
}

/// The parsed arguments: MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH password | AUTH2 user password]
/// [KEYS key ...]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrateArgs {
    /// The server and database to which the keys are moved.
    pub destination: Destination,
    /// The keys to move.
    pub keys: Vec<Vec<u8>>,
    /// Time limit for the whole migration.
    pub timeout: Duration,
    /// Whether the keys also stay on this node (COPY).
    pub copy: bool,
    /// Whether existing keys on the target are replaced (REPLACE).
    pub replace: bool,
}

/// An option of MIGRATE with the positions of its arguments.
enum MigrateOption {
    Copy,
    Replace,
    /// The arguments of AUTH or AUTH2.
    Auth(Range<usize>),
    /// KEYS, followed by key names in all remaining arguments.
    Keys(Range<usize>),
    Unknown,
}

/// Parses the option at `index` and returns the option and the index of the next one. [`MigrateArgs::parse`] and
/// [`migrate_key_positions`] share this parser.
fn parse_option(args: Args<'_>, index: usize) -> (MigrateOption, usize) {
    let word = args.get(index).unwrap_or_default();
    let is = |name: &[u8], more: usize| word.eq_ignore_ascii_case(name) && index + more < args.len();
    let next = index + 1;
    match () {
        () if is(b"copy", 0) => (MigrateOption::Copy, next),
        () if is(b"replace", 0) => (MigrateOption::Replace, next),
        () if is(b"auth", 1) => (MigrateOption::Auth(next..next + 1), next + 1),
        () if is(b"auth2", 2) => (MigrateOption::Auth(next..next + 2), next + 2),
        () if is(b"keys", 0) => (MigrateOption::Keys(next..args.len()), args.len()),
        () => (MigrateOption::Unknown, next),
    }
}

/// Returns the positions of the keys: those after KEYS, or the third argument. The range is empty if both are given,
/// since the handler refuses such a command.
#[must_use]
pub fn migrate_key_positions(args: Args<'_>) -> Range<usize> {
    let mut index = 6;
    while index < args.len() {
        let (option, next) = parse_option(args, index);
        match option {
            MigrateOption::Keys(keys) if keys.is_empty() => break,
            MigrateOption::Keys(keys) if args[3].is_empty() => return keys,
            MigrateOption::Keys(_) => return 0..0,
            _ => index = next,
        }
    }
    3..4
}

impl MigrateArgs {
    /// Parses the arguments; the caller has checked the arity.
    ///
    /// # Errors
    ///
    /// The error text for the client.
    pub fn parse(args: Args<'_>) -> Result<Self, &'static str> {
        let text = |index: usize| String::from_utf8_lossy(&args[index]).into_owned();
        let mut order = Self {
            destination: Destination { host: text(1), port: text(2), db: 0, auth: Vec::new() },
            keys: vec![args[3].to_vec()],
            timeout: DEFAULT_TIMEOUT,
            copy: false,
            replace: false,
        };
        let mut index = 6;
        while index < args.len() {
            let (option, next) = parse_option(args, index);
            index = next;
            match option {
                MigrateOption::Copy => order.copy = true,
                MigrateOption::Replace => order.replace = true,
                MigrateOption::Auth(words) => {
                    order.destination.auth = words.map(|at| args[at].to_vec()).collect();
                }
                MigrateOption::Keys(_) if !args[3].is_empty() => {
                    return Err(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                    );
                }
                MigrateOption::Keys(keys) => order.keys = keys.map(|at| args[at].to_vec()).collect(),
                MigrateOption::Unknown => return Err(SYNTAX_ERROR),
            }
        }
        let millis = resp::parse_i64(&args[5]).ok_or(NOT_INTEGER_ERROR)?;
        order.destination.db = resp::parse_i64(&args[4]).ok_or(NOT_INTEGER_ERROR)?;
        if millis > 0 {
            order.timeout = Duration::from_millis(millis.unsigned_abs());
        }
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;

    fn migrate_args(
        keys: &[&str],
        db: i64,
        millis: u64,
        auth: &[&str],
        (copy, replace): (bool, bool),
    ) -> MigrateArgs {
        let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let destination = Destination { host: "h".into(), port: "1".into(), db, auth: words(auth) };
        MigrateArgs { destination, keys: words(keys), timeout: Duration::from_millis(millis), copy, replace }
    }

    #[test]
    fn migrate_arguments_are_parsed() {
        let no = (false, false);
        let table = [
            ("k 0 5", Ok(migrate_args(&["k"], 0, 5, &[], no))),
            ("k 3 0", Ok(migrate_args(&["k"], 3, 1000, &[], no))),
            ("k -1 -7", Ok(migrate_args(&["k"], -1, 1000, &[], no))),
            ("k 0 5 copy REPLACE", Ok(migrate_args(&["k"], 0, 5, &[], (true, true)))),
            ("k 0 5 AUTH pw", Ok(migrate_args(&["k"], 0, 5, &["pw"], no))),
            ("k 0 5 auth2 me pw replace", Ok(migrate_args(&["k"], 0, 5, &["me", "pw"], (false, true)))),
            ("- 0 5 keys a b copy", Ok(migrate_args(&["a", "b", "copy"], 0, 5, &[], no))),
            ("- 0 5 replace keys", Ok(migrate_args(&[], 0, 5, &[], (false, true)))),
            ("k 0 5 auth", Err(SYNTAX_ERROR)),
            ("k 0 5 auth2 me", Err(SYNTAX_ERROR)),
            ("k 0 5 nonsense", Err(SYNTAX_ERROR)),
            ("k x 5 nonsense", Err(SYNTAX_ERROR)),
            ("k x 5", Err(NOT_INTEGER_ERROR)),
            ("k 0 x", Err(NOT_INTEGER_ERROR)),
        ];
        for (line, expected) in table {
            // In the test tables a dash stands for an empty argument.
            let words = ["migrate", "h", "1"].into_iter().chain(line.split(' '));
            let request: Request = words.map(|word| if word == "-" { "" } else { word }.as_bytes()).collect();
            assert_eq!(MigrateArgs::parse(request.args()), expected, "{line}");
        }
        let request: Request = "migrate h 1 k 0 5 keys a".split(' ').map(str::as_bytes).collect();
        assert!(MigrateArgs::parse(request.args()).is_err_and(|error| error.contains("the empty string")));
    }
}
