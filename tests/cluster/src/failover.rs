//! Tests of failovers, masters that return empty, and the recorded failover history.

mod empty_master;
mod failovers;
mod flight_recorder;
