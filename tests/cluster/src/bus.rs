//! The cluster bus: announcements, counters, hostile peers.

mod announcements;
mod bus_counters;
mod hostile_peer;
