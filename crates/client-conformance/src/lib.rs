//! Tests client libraries against failure scenarios and grades them.
//!
//! A [`Scenario`] is a small file that lists nodes, their faults and the client's requests.
//! [`simulation`] simulates the nodes without sockets; [`run_scenario()`] opens ports for them (or uses real
//! servers), starts the library's adapter (a program that follows requests in JSON lines, see
//! [`protocol`]) and records all events. [`verdict`] grades the result, and [`scorecard`] renders
//! the grades.
//!
//! Invariant: a verdict depends only on recorded events, so equal seeds give equal keys and
//! faults, and a deterministic library always gets the same grades.
#![forbid(unsafe_code)]

mod adapter;
mod cli;
mod encryption;
pub mod event_log;
mod nodes;
mod placeholders;
pub mod protocol;
mod real_nodes;
mod scenario;
mod scenario_files;
mod scenario_run;
pub mod scorecard;
mod scripted_nodes;
pub mod simulation;
pub mod verdict;

pub use adapter::AdapterFailure;
pub use cli::{Arguments, ScenarioRunner, run};
pub use real_nodes::ServerPrograms;
pub use scenario::{
    CertificateAuthority, ConnectionHandling, CostLimits, ErrorPolicy, Expectation, FaultRule, NodeEvent,
    NodeSpec, ReplyFault, ReportedMap, Scenario, ScenarioStep, StepAction, Theme,
};
pub use scenario_files::{built_in_scenarios, scenarios_in_folder};
pub use scenario_run::{RequestAttempt, ScenarioRun, StepResult, run_scenario};
