//! Command errors and their texts.

use std::borrow::Cow;
use std::fmt;

use slot_routing::Slot;

/// Error code for commands that a replica does not apply from the stream, because only each node's operator decides
/// about them.
const NO_EFFECT_CODE: &str = "NOEFFECT";

/// An error of a command. Its [`fmt::Display`] is the only place that produces the texts known from Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandError {
    // Errors of the client.
    /// The command is not known.
    UnknownCommand {
        /// The command name as sent.
        name: Vec<u8>,
        /// The arguments after the name.
        args: Vec<Vec<u8>>,
    },
    /// The container command has no subcommand of this name.
    UnknownSubcommand {
        /// The container command.
        container: &'static str,
        /// The subcommand as sent.
        name: Vec<u8>,
    },
    /// The number of arguments is wrong for the command with this full name (`container|sub` for a subcommand).
    WrongArity(String),
    /// The arguments do not follow the command's syntax.
    Syntax,
    /// The key holds a value of the wrong type.
    WrongType,
    /// An argument is not an integer, or is out of range.
    NotInteger,
    /// An argument is not a valid floating-point number.
    NotFloat,
    /// The key does not exist.
    NoSuchKey,
    /// The expiry given to this command is not positive or too large.
    InvalidExpire(&'static str),
    /// An index argument is out of range.
    OutOfRange,
    /// The resulting string would exceed `proto-max-bulk-len`.
    StringTooLong,
    /// Incrementing or decrementing the integer would overflow.
    Overflow,
    /// The result would be NaN or infinite.
    NaNOrInfinity,
    /// The database number is negative or too large.
    InvalidDbIndex,
    /// The keys of one command are in different slots.
    CrossSlot,
    /// The client is not authenticated.
    NoAuth,
    /// The command is protected, and the configuration does not permit it to this client.
    NotAllowed {
        /// The command's name.
        command: &'static str,
        /// The configuration option that would permit it.
        option: &'static str,
    },
    /// The handler of this command accessed a key that the command did not declare: a bug in this server.
    UndeclaredKey(String),
    /// A command in a replication stream that replicas do not apply.
    NoEffect(String),
    /// Any other error text, starting with its code.
    Text(Cow<'static, str>),
    // Redirections.
    /// Another node serves the slot.
    Redirect {
        /// ASK if true, otherwise MOVED.
        ask: bool,
        /// The requested slot.
        slot: Slot,
        /// Host to which the client should connect: an address or a hostname.
        host: String,
        /// Port of the other node.
        port: u16,
    },
    /// Redirection to this replica's master at `host:port`.
    RedirectToMaster(String),
    /// Some of the keys have been migrated and others have not.
    TryAgain,
    // Errors caused by the state of the node or the cluster.
    /// No node serves the slot.
    SlotNotServed,
    /// The cluster is down.
    ClusterDown,
    /// The cluster is down for writes.
    ClusterDownReadsOnly,
    /// The data set is being loaded.
    Loading,
    /// A script is blocking the server.
    Busy,
    /// A function is blocking the server.
    BusyFunction,
    /// The command writes, and this node is a read-only replica.
    ReadOnlyReplica,
    /// The link to the master is down and `replica-serve-stale-data` is off.
    MasterDown,
    /// A master that restarted without data waits until a replica is promoted.
    EmptyMaster,
    /// The last save failed (`stop-writes-on-bgsave-error`).
    MisConf,
    /// The AOF cannot be written; the text is the operating system's reason.
    AofFailed(String),
    /// Too few replicas have low lag (`min-replicas-to-write`).
    NoReplicas,
    /// Memory use exceeds `maxmemory`.
    OutOfMemory,
    /// The address space of a slot's pages, or of a large value, is exhausted.
    SlotFull,
}

impl CommandError {
    /// Creates an error from a text that starts with its code.
    #[must_use]
    pub const fn text(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    /// Returns whether the command did not start because this node does not serve its keys at the moment.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Redirect { .. }
                | Self::RedirectToMaster(_)
                | Self::TryAgain
                | Self::SlotNotServed
                | Self::CrossSlot
        )
    }

    /// Returns whether the error is a redirection or reports that the slots are not served.
    #[must_use]
    pub fn is_cluster_error(&self) -> bool {
        self.is_refusal() || matches!(self, Self::ClusterDown | Self::ClusterDownReadsOnly)
    }
}

/// Maximum number of quoted bytes of client input, as in Redis.
const MAX_QUOTED_BYTES: usize = 128;

const MISCONF: &str = "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to \
     disk. Commands that may modify the data set are disabled, because this instance is configured to report errors \
     during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Valkey logs for \
     details about the RDB error.";

const BUSY: &str = "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
const BUSY_FUNCTION: &str =
    "BUSY Valkey is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";
const MASTER_DOWN: &str = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
const EMPTY_MASTER: &str =
    "MASTERDOWN This master started without its data and waits until a replica has taken its place.";

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::UnknownCommand { name, args } => return write_unknown_command(f, name, args),
            Self::UnknownSubcommand { container, name } => {
                let name = quote(name, MAX_QUOTED_BYTES);
                return write!(f, "ERR unknown subcommand '{name}'. Try {} HELP.", container.to_uppercase());
            }
            Self::WrongArity(name) => {
                return write!(f, "ERR wrong number of arguments for '{name}' command");
            }
            Self::NotAllowed { command, option } => return write_not_allowed(f, command, option),
            Self::NoEffect(name) => {
                return write!(
                    f,
                    "{NO_EFFECT_CODE} A master's word changes data: '{name}' is for this node's own clients"
                );
            }
            Self::InvalidExpire(name) => return write!(f, "ERR invalid expire time in '{name}' command"),
            Self::Redirect { ask, slot, host, port } => {
                return slot_routing::Redirect { is_ask: *ask, slot: *slot, host, port: *port }.fmt(f);
            }
            Self::UndeclaredKey(name) => {
                return write!(f, "ERR internal error: '{name}' asked for a key that it did not declare");
            }
            Self::AofFailed(why) => return write!(f, "MISCONF Errors writing to the AOF file: {why}"),
            Self::RedirectToMaster(address) => return write!(f, "REDIRECT {address}"),
            Self::Text(text) => text,
            Self::Syntax => "ERR syntax error",
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::NotInteger => "ERR value is not an integer or out of range",
            Self::NotFloat => "ERR value is not a valid float",
            Self::NoSuchKey => "ERR no such key",
            Self::OutOfRange => "ERR index out of range",
            Self::StringTooLong => "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
            Self::Overflow => "ERR increment or decrement would overflow",
            Self::NaNOrInfinity => "ERR increment would produce NaN or Infinity",
            Self::InvalidDbIndex => "ERR DB index is out of range",
            Self::CrossSlot => "CROSSSLOT Keys in request don't hash to the same slot",
            Self::NoAuth => "NOAUTH Authentication required.",
            Self::TryAgain => "TRYAGAIN Multiple keys request during rehashing of slot",
            Self::SlotNotServed => "CLUSTERDOWN Hash slot not served",
            Self::ClusterDown => "CLUSTERDOWN The cluster is down",
            Self::ClusterDownReadsOnly => "CLUSTERDOWN The cluster is down and only accepts read commands",
            Self::Busy => BUSY,
            Self::BusyFunction => BUSY_FUNCTION,
            Self::Loading => "LOADING Valkey is loading the dataset in memory",
            Self::ReadOnlyReplica => "READONLY You can't write against a read only replica.",
            Self::MasterDown => MASTER_DOWN,
            Self::EmptyMaster => EMPTY_MASTER,
            Self::MisConf => MISCONF,
            Self::NoReplicas => "NOREPLICAS Not enough good replicas to write.",
            Self::SlotFull => "OOM command not allowed when a slot holds as many small values as it can",
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
        };
        f.write_str(text)
    }
}

impl std::error::Error for CommandError {}

/// Formats client input for an error text: at most `max_bytes`, and only up to the first NUL.
pub fn quote(bytes: &[u8], max_bytes: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(truncate_at_nul(&bytes[..bytes.len().min(max_bytes)]))
}

/// Truncates at the first NUL, as Redis does where it formats C strings.
pub fn truncate_at_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns the error for wrong arguments of a subcommand; its text quotes the subcommand's name as the client sent it.
#[must_use]
pub fn wrong_subcommand_arguments(container: &str, subcommand: &[u8]) -> CommandError {
    let name = quote(subcommand, 128);
    let text =
        format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP.");
    CommandError::Text(text.into())
}

fn write_not_allowed(f: &mut fmt::Formatter<'_>, command: &str, option: &str) -> fmt::Result {
    write!(
        f,
        "ERR {command} command not allowed. If the {option} option is set to \"local\", you can run it from a \
         local connection, otherwise you need to set this option in the configuration file, and then restart the \
         server."
    )
}

fn write_unknown_command(f: &mut fmt::Formatter<'_>, name: &[u8], args: &[Vec<u8>]) -> fmt::Result {
    let name = quote(name, MAX_QUOTED_BYTES);
    write!(f, "ERR unknown command '{name}', with args beginning with: ")?;
    let mut room = MAX_QUOTED_BYTES;
    for arg in args {
        if room == 0 {
            break;
        }
        let shown = truncate_at_nul(&arg[..arg.len().min(room)]);
        write!(f, "'{}' ", String::from_utf8_lossy(shown))?;
        room = room.saturating_sub(shown.len() + 3);
    }
    Ok(())
}
