//! Why a command was refused, and the text that says so.

use std::borrow::Cow;
use std::fmt;

use slot_routing::Slot;

/// The code of the error that a master hears, if it listened, of what is for a node's own operators.
pub const NO_EFFECT: &str = "NOEFFECT";

/// A refused command. One place ([`fmt::Display`]) turns it into the text that Redis users know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandError {
    // The client's fault.
    /// There is no such command.
    UnknownCommand {
        /// The name.
        name: Vec<u8>,
        /// The arguments that followed it.
        args: Vec<Vec<u8>>,
    },
    /// A container has no such subcommand.
    UnknownSubcommand {
        /// The container.
        container: &'static str,
        /// The name.
        name: Vec<u8>,
    },
    /// The full name, `container|sub` for a subcommand.
    WrongArity(String),
    /// Words that make no sense together.
    Syntax,
    /// The key holds a value of another kind.
    WrongType,
    /// A number that is none or too large.
    NotInteger,
    /// A floating-point number that is none.
    NotFloat,
    /// The key is not there.
    NoSuchKey,
    /// A time to live that makes no sense, for this command.
    InvalidExpire(&'static str),
    /// An index out of range.
    OutOfRange,
    /// A string beyond `proto-max-bulk-len`.
    StringTooLong,
    /// A counter would leave its range.
    Overflow,
    /// The result would be no number.
    NaNOrInfinity,
    /// A database that is not there.
    InvalidDbIndex,
    /// Keys of several slots in one command.
    CrossSlot,
    /// The client has not signed in.
    NoAuth,
    /// A protected command that the configuration keeps from this client.
    NotAllowed {
        /// The command.
        command: &'static str,
        /// The option that would allow it.
        option: &'static str,
    },
    /// The handler of this command asked for a key that the command did not declare: a fault of this server.
    UndeclaredKey(String),
    /// Nothing that a replica does for its master.
    NoEffect(String),
    /// Any other text, its code first.
    Text(Cow<'static, str>),
    // Another node serves it.
    /// Another node serves the slot.
    Redirect {
        /// ASK, for the next command alone; otherwise MOVED.
        ask: bool,
        /// The slot.
        slot: Slot,
        /// The other node's address or name.
        host: String,
        /// Its port.
        port: u16,
    },
    /// The master of this replica does, at `host:port`.
    ToMaster(String),
    /// Some of the keys have moved and others have not.
    TryAgain,
    // The environment's state.
    /// No node serves the slot.
    SlotNotServed,
    /// The cluster does not serve.
    ClusterDown,
    /// The cluster serves only reads.
    ClusterDownReadsOnly,
    /// Data is being loaded.
    Loading,
    /// A script has run for too long.
    Busy,
    /// A function has run for too long.
    BusyFunction,
    /// A long command holds what this one needs: no client sees that, since its connection goes to where it can wait.
    HeldForLong,
    /// The same, when nobody knows what it is that holds that.
    Held,
    /// A write to a replica.
    ReadOnlyReplica,
    /// The link to the master is down, and old data is not to be served.
    MasterDown,
    /// A master without its data waits until a replica has taken its place.
    EmptyMaster,
    /// The last save failed.
    MisConf,
    /// The append-only file cannot be written, and why.
    AofFailed(String),
    /// Too few replicas are near enough.
    NoReplicas,
    /// More than `maxmemory` is in use.
    OutOfMemory,
    /// The pages of one slot, or of one large value, have no room left.
    SlotFull,
}

impl CommandError {
    /// An error with this text, its code first.
    #[must_use]
    pub const fn text(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    /// Whether the command never began: another node serves its keys, or no node does just now.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Redirect { .. }
                | Self::ToMaster(_)
                | Self::TryAgain
                | Self::SlotNotServed
                | Self::CrossSlot
        )
    }

    /// Whether it tells where keys are served, or that they are not.
    #[must_use]
    pub fn is_about_cluster(&self) -> bool {
        self.is_refusal() || matches!(self, Self::ClusterDown | Self::ClusterDownReadsOnly)
    }
}

/// Redis quotes at most this much of what a client sent.
const QUOTED: usize = 128;

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
            Self::UnknownCommand { name, args } => return unknown_command(f, name, args),
            Self::UnknownSubcommand { container, name } => {
                let name = quoted(name, QUOTED);
                return write!(f, "ERR unknown subcommand '{name}'. Try {} HELP.", container.to_uppercase());
            }
            Self::WrongArity(name) => {
                return write!(f, "ERR wrong number of arguments for '{name}' command");
            }
            Self::NotAllowed { command, option } => return not_allowed(f, command, option),
            Self::NoEffect(name) => {
                return write!(
                    f,
                    "{NO_EFFECT} A master's word changes data: '{name}' is for this node's own clients"
                );
            }
            Self::InvalidExpire(name) => return write!(f, "ERR invalid expire time in '{name}' command"),
            Self::Redirect { ask, slot, host, port } => {
                return slot_routing::Redirect { ask: *ask, slot: *slot, host, port: *port }.fmt(f);
            }
            Self::UndeclaredKey(name) => {
                return write!(f, "ERR internal error: '{name}' asked for a key that it did not declare");
            }
            Self::AofFailed(why) => return write!(f, "MISCONF Errors writing to the AOF file: {why}"),
            Self::ToMaster(address) => return write!(f, "REDIRECT {address}"),
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
            Self::Busy | Self::HeldForLong | Self::Held => BUSY,
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

/// A word from a client, as an error shows it: at most so many bytes, and only up to a NUL.
pub fn quoted(bytes: &[u8], most: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(until_nul(&bytes[..bytes.len().min(most)]))
}

/// As Redis reads a text that it takes for a string of C.
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Words that a subcommand does not take: it is named as the client did.
#[must_use]
pub fn misused(container: &str, subcommand: &[u8]) -> CommandError {
    let name = quoted(subcommand, 128);
    let text =
        format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP.");
    CommandError::Text(text.into())
}

fn not_allowed(f: &mut fmt::Formatter<'_>, command: &str, option: &str) -> fmt::Result {
    write!(
        f,
        "ERR {command} command not allowed. If the {option} option is set to \"local\", you can run it from a \
         local connection, otherwise you need to set this option in the configuration file, and then restart the \
         server."
    )
}

fn unknown_command(f: &mut fmt::Formatter<'_>, name: &[u8], args: &[Vec<u8>]) -> fmt::Result {
    let name = quoted(name, QUOTED);
    write!(f, "ERR unknown command '{name}', with args beginning with: ")?;
    let mut room = QUOTED;
    for arg in args {
        if room == 0 {
            break;
        }
        let shown = until_nul(&arg[..arg.len().min(room)]);
        write!(f, "'{}' ", String::from_utf8_lossy(shown))?;
        room = room.saturating_sub(shown.len() + 3);
    }
    Ok(())
}
