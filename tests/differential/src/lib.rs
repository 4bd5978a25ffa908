//! Two servers, the same commands, the same replies.
//!
//! [`Grammar`] turns a seed into a sequence of commands: valid ones, edges, and some with an argument lost, doubled
//! or replaced, all over a handful of keys so that they meet. [`Pair`] sends the sequence to both servers and finds
//! the first reply that differs; what differs for a reason (a time, a random choice, an order that is not promised)
//! is compared as loosely as it must be ([`same`]). [`Pair::shrink`] then drops commands for as long as some reply
//! still differs, and what is left is a bug report.
//!
//! No sequence depends on how long it takes: what expires is either in the past or hours away.
#![forbid(unsafe_code)]

mod callers;
mod compare;
mod compatibility;
mod data;
mod documents;
mod followed;
mod generate;
mod grammar;
mod pair;
mod peer;
mod waivers;
mod way;

pub use callers::{Caller, Played, Table, tested_elsewhere};
pub use compare::same;
pub use compatibility::{Commands, ONLY_HERE, compatibility_page, is_missing, wrongly_listed};
pub use documents::{Document, read_documents};
pub use followed::Followed;
pub use generate::Generator;
pub use grammar::Grammar;
pub use pair::{Difference, Pair};
pub use peer::Peer;
pub use waivers::{differences_page, is_waived};
pub use way::{Protocol, Way};

/// A command: its name and arguments.
pub type Command = Vec<Vec<u8>>;

/// A number from the environment, to make a run longer or another one.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A command as `redis-cli` would take it.
#[must_use]
pub fn show(command: &Command) -> String {
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
