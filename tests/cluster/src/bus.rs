//! Tests of the cluster bus: announcements, counters and hostile peers.

mod announcements;
mod bus_counters;
mod hostile_peer;
