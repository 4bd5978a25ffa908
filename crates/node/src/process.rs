//! The process and its housekeeping: how it starts and ends, what it does by itself, what it says of itself.

pub(crate) mod access;
pub(crate) mod crash;
pub(crate) mod cron;
pub(crate) mod daemon;
pub(crate) mod event_loops;
pub(crate) mod housekeeping;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod oom;
pub(crate) mod places;
pub(crate) mod pulse;
pub(crate) mod rates;
pub(crate) mod settings;
pub(crate) mod shutdown;
pub(crate) mod startup;
pub(crate) mod stopping;
pub(crate) mod time;
pub(crate) mod totals;
