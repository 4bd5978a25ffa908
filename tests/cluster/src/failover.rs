//! Failovers, masters that return empty, and the flight recorder.

mod empty_master;
mod failovers;
mod flight_recorder;
