//! Sends the same commands to two servers and compares their replies.
//!
//! [`Grammar`] and a generator turn a seed into a sequence of commands: valid ones, edge cases, and some with an
//! argument dropped, duplicated or replaced, all on a few keys so that they interact. [`ServerPair`] sends the sequence to
//! both servers and finds the first reply that differs; replies that may differ (times, random choices, unspecified
//! order) are compared as strictly as possible ([`are_equivalent`]). [`ServerPair::shrink_difference`] then drops commands while some reply still
//! differs, and the remaining commands are the bug report.
//!
//! No sequence depends on its duration: expiry times are either in the past or hours away.
#![forbid(unsafe_code)]

mod callers;
mod compare;
mod compatibility;
mod data;
mod documents;
mod execution_mode;
mod generate;
mod grammar;
mod pair;
mod peer;
mod replicated_pair;
mod waivers;

pub use callers::{CommandCaller, CommandFlags, ExecutedCommands, tested_elsewhere_reason};
pub use compare::are_equivalent;
pub use compatibility::{
    REDOUBT_ONLY_COMMANDS, ServerCommands, compatibility_page, find_wrong_missing_entries, is_missing,
};
pub use documents::{CommandDocument, read_documents};
pub use execution_mode::{ExecutionMode, Protocol};
pub use generate::Generator;
pub use grammar::Grammar;
pub use pair::{ReplyDifference, ServerPair};
pub use peer::ReferenceServer;
pub use replicated_pair::ReplicatedPair;
pub use waivers::{differences_page, is_waived};

/// A command as its name and arguments.
pub type Command = Vec<Vec<u8>>;

/// Reads a number from the environment variable `name`; tests use it to select more or other seeds.
#[must_use]
pub fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Formats a command as it would be typed in `redis-cli`.
#[must_use]
pub fn format_command(command: &Command) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| {
            let plain = !word.is_empty() && word.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"');
            if plain {
                String::from_utf8_lossy(word).into_owned()
            } else {
                format!("\"{}\"", word.escape_ascii())
            }
        })
        .collect();
    words.join(" ")
}
