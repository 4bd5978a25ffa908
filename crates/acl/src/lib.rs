//! Access control: users, their passwords, and what they may run, touch and hear.
//!
//! Servers and sentinels have the same users, told apart only by the commands that they have: whoever
//! uses this crate hands in a [`Catalogue`] of those, and asks before it runs one.
//!
//! | part | what it is |
//! | --- | --- |
//! | `category` | the groups of commands that rules name with `@` |
//! | `catalogue` | the commands there are, by number and by name |
//! | `password` | passwords, of which only the SHA-256 sums are kept |
//! | `selector` | one set of rules: commands, keys, channels; and whether it admits a request |
//! | `user` | a user: flags, passwords, a first selector and further ones |
//! | `users` | all users; logging in, and lines of configuration files |
//! | `log` | the latest refusals |
//! | `command` | the ACL command's replies |
//!
//! Invariants: a change that is refused changes nothing; there is always a user `default`; what a
//! rule names exists; a user described in words ([`User::describe`]) and read back is the same user.
//!
//! Rules about commands are kept in the order and the words in which they were given (as Redis does from
//! 7.2 on), less those that a later one overrides. So `+@read` still means all that reads when a newer
//! version with more commands reads the file.
//!
//! From: the Redis documentation, "ACL", and the behaviour of Redis 7.
#![forbid(unsafe_code)]

mod catalogue;
mod category;
mod command;
mod log;
mod password;
mod selector;
mod user;
mod users;

pub use catalogue::{Catalogue, CommandId};
pub use category::Categories;
pub use command::{Asker, Effect, HELP, Host, NO_FILE, Unresolved, answer, genpass};
pub use log::{Incident, Log, Reason};
pub use selector::{Channel, Denial, Key, Need, Request, Touched};
pub use user::{RuleError, User};
pub use users::{DEFAULT, FileFault, LineError, Users};

#[cfg(test)]
mod tests;
