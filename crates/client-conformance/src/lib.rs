//! How good is a client library? Scenarios say.
//!
//! A [`Scenario`] is a small file: nodes, their faults, the client's requests meanwhile. [`stage`] is its nodes as a
//! machine without sockets; [`play()`] gives them ports (or takes real servers in their place), starts the library's
//! adapter (a program that does what it is told by lines of JSON, see [`protocol`]) and notes all that happens;
//! [`verdict`] says how good that was, and [`card`] shows the verdicts.
//!
//! Invariant: a verdict follows from what was seen alone, so the same seed gives the same keys, the same faults and,
//! with a library that does the same, the same grades.
#![forbid(unsafe_code)]

mod adapter;
pub mod card;
mod cli;
mod encryption;
pub mod log;
mod names;
mod nodes;
mod play;
pub mod protocol;
mod real;
mod scenario;
mod scenarios;
mod sockets;
pub mod stage;
pub mod verdict;

pub use adapter::NoAnswer;
pub use cli::{Arguments, Player, run};
pub use play::{Attempt, Played, Run, play};
pub use real::Servers;
pub use scenario::{
    Act, Allow, Authority, Deed, Errors, Event, NetState, NodeSpec, Rule, Scenario, Step, Tells, Theme, Wants,
};
pub use scenarios::{built_in, in_folder};
