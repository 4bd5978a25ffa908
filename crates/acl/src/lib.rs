//! Access control: users, their passwords, and the commands, keys and channels they may use.
//!
//! Servers and sentinels share this crate and differ only in their commands: each passes its
//! [`CommandCatalogue`], and checks every request before executing it.
//!
//! | module | contents |
//! | --- | --- |
//! | `category` | command categories (`@name` in rules) |
//! | `catalogue` | the commands, by index and by name |
//! | `password` | passwords, stored only as SHA-256 hashes |
//! | `selector` | one set of rules for commands, keys and channels, and its check of a request |
//! | `user` | a user: flags, passwords, a root selector and further ones |
//! | `users` | all users; authentication, and lines of configuration files |
//! | `log` | ACL LOG |
//! | `command` | the ACL command |
//!
//! Invariants: a rejected change has no effect; the user `default` always exists; rules refer only to
//! existing names; parsing the description of a user ([`User::format_rules`]) gives an equal user.
//!
//! Command rules are kept in the order and wording in which they were given (like Redis since 7.2), except
//! those that a later rule overrides. So `+@read` still covers all read commands when a newer version with
//! more commands loads the file.
//!
//! Source: the Redis documentation, "ACL", and the behaviour of Redis 7.
#![forbid(unsafe_code)]

mod catalogue;
mod category;
mod command;
mod log;
mod password;
mod rule_error;
mod selector;
mod user;
mod users;

pub use catalogue::{CommandCatalogue, CommandId};
pub use category::Categories;
pub use command::{
    AclClient, CommandResolver, HELP, NO_FILE_ERROR, ResolveError, UserChange, execute_acl, run_genpass,
};
pub use log::{AclDenial, AclLog, DenialReason};
pub use rule_error::RuleError;
pub use selector::{AccessedChannel, AccessedDatabases, AccessedKey, AclRequest, Denial, KeyAccess};
pub use user::User;
pub use users::{AclFileError, DEFAULT_USER_NAME, UserRulesError, Users};

#[cfg(test)]
mod tests;
