//! Tests of clusters of real processes: failover, slots that move, the bus, mixed clusters.
#![forbid(unsafe_code)]

#[cfg(test)]
mod bus;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod mixed;
#[cfg(test)]
mod slots;
