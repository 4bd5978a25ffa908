//! The known events and flags, and the reasons why some of them occur in no scenario.

/// The steps of a failover, compared in order by `beside_valkey.rs`. Excludes events that depend on timing, such as a
/// server that is down for a moment.
pub const FAILOVER_EVENTS: [&str; 21] = [
    "+odown",
    "+new-epoch",
    "+try-failover",
    "+vote-for-leader",
    "+elected-leader",
    "+failover-state-select-slave",
    "+selected-slave",
    "+failover-state-send-slaveof-noone",
    "+failover-state-wait-promotion",
    "-failover-abort-slave-timeout",
    "-failover-abort-no-good-slave",
    "-failover-abort-not-elected",
    "+promoted-slave",
    "+failover-state-reconf-slaves",
    "+slave-reconf-sent",
    "+slave-reconf-inprog",
    "+slave-reconf-done",
    "+failover-end",
    "+config-update-from",
    "+switch-master",
    "+slave",
];

/// All events in the Redis documentation, and all others that Redoubt or Valkey sentinels publish.
pub const KNOWN_EVENTS: &[&str] = &[
    "+reset-master",
    "+slave",
    "+failover-state-reconf-slaves",
    "+failover-detected",
    "+slave-reconf-sent",
    "+slave-reconf-inprog",
    "+slave-reconf-done",
    "-dup-sentinel",
    "+sentinel",
    "+sdown",
    "-sdown",
    "+odown",
    "-odown",
    "+new-epoch",
    "+try-failover",
    "+elected-leader",
    "+failover-state-select-slave",
    "-failover-abort-no-good-slave",
    "+selected-slave",
    "+failover-state-send-slaveof-noone",
    "+failover-end-for-timeout",
    "+failover-end",
    "+switch-master",
    "+tilt",
    "-tilt",
    // The following events are not in the documentation.
    "+vote-for-leader",
    "+failover-state-wait-promotion",
    "-failover-abort-not-elected",
    "-failover-abort-slave-timeout",
    "+promoted-slave",
    "+slave-reconf-sent-be",
    "-slave-reconf-sent-timeout",
    "+config-update-from",
    "+monitor",
    "-monitor",
    "+set",
    "+reboot",
    "+role-change",
    "-role-change",
    "+convert-to-slave",
    "+fix-slave-config",
    "+sentinel-address-switch",
    "+sentinel-invalid-addr",
    "-sentinel",
];

/// Events that occur in no scenario, each with the reason.
pub const UNCOVERED_EVENTS: &[(&str, &str)] = &[
    ("+failover-detected", "the documentation has it, no sentinel of today publishes it"),
    (
        "-dup-sentinel",
        "the documentation has it, no sentinel of today publishes it: +sentinel-address-switch",
    ),
    ("-sentinel", "of ours alone, after SENTINEL FORGET-PEER"),
];

/// The flags of masters, replicas and sentinels.
pub const INSTANCE_FLAGS: &[&str] = &[
    "master",
    "slave",
    "sentinel",
    "s_down",
    "o_down",
    "disconnected",
    "master_down",
    "failover_in_progress",
    "force_failover",
    "coordinated_failover",
    "promoted",
    "reconf_sent",
    "reconf_inprog",
    "reconf_done",
    "script_kill_sent",
    "master_reboot",
];

/// Commands of `SENTINEL HELP` that no scenario or query covers, each with the reason.
pub const UNCOVERED_COMMANDS: &[(&str, &str)] =
    &[("HELP", "its lines are ours: commands of ours are among them")];

/// Whether the event is in [`KNOWN_EVENTS`].
#[must_use]
pub fn is_known_event(event: &str) -> bool {
    KNOWN_EVENTS.contains(&event)
}
