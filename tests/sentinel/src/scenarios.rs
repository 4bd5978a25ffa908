//! The test scenarios, grouped by the server group that they share.

use crate::scenario::{GroupMember, Scenario, ScenarioStep};
use GroupMember::{Master, Sentinel, Server};

/// All groups of scenarios, each with its name and number of servers.
pub const SCENARIO_GROUPS: &[(&str, usize, &[Scenario])] = &[
    ("replicas", 3, REPLICA_SCENARIOS),
    ("replicas with a wrong master", 3, STRAY_REPLICA_SCENARIOS),
    ("master", 3, MASTER_STATE_SCENARIOS),
    ("loading and busy master", 3, BUSY_MASTER_SCENARIOS),
    ("sentinels", 3, SENTINEL_SCENARIOS),
    ("agreement", 3, AGREEMENT_SCENARIOS),
    ("configuration", 3, CONFIGURATION_SCENARIOS),
    ("failover waiting for promotion", 4, WAITING_FAILOVER_SCENARIOS),
    ("aborted failover", 4, ABORTED_FAILOVER_SCENARIOS),
    ("handover", 3, HANDOVER_SCENARIOS),
];

/// Returns the scenarios with this name, and the number of servers that they need.
///
/// # Panics
/// The name is unknown.
#[must_use]
pub fn find_scenarios(name: &str) -> (usize, &'static [Scenario]) {
    let found = SCENARIO_GROUPS.iter().find(|(chapter, ..)| *chapter == name);
    found.map(|(_, servers, stories)| (*servers, *stories)).expect("a chapter of this name")
}

const REPLICA_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a replica is killed",
        steps: &[ScenarioStep::Kill(Server(2))],
        expected_lines: &["# +sdown slave S2 @ mymaster S0"],
        expected_flags: &[
            (Master, "master"),
            (Server(1), "slave"),
            (Server(2), "s_down,slave,disconnected"),
            (Sentinel(1), "sentinel"),
        ],
    },
    Scenario {
        name: "it comes back",
        steps: &[ScenarioStep::StartProcess(Server(2))],
        expected_lines: &["* +reboot slave S2 @ mymaster S0", "# -sdown slave S2 @ mymaster S0"],
        expected_flags: &[(Server(2), "slave")],
    },
    Scenario {
        name: "a replica is frozen",
        steps: &[ScenarioStep::Freeze(Server(2))],
        expected_lines: &["# +sdown slave S2 @ mymaster S0"],
        expected_flags: &[],
    },
    Scenario {
        name: "it goes on",
        steps: &[ScenarioStep::Thaw(Server(2))],
        expected_lines: &["# -sdown slave S2 @ mymaster S0"],
        expected_flags: &[(Server(2), "slave")],
    },
];

const STRAY_REPLICA_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a replica takes itself for a master",
        steps: &[ScenarioStep::CommandServer(2, "REPLICAOF NO ONE")],
        expected_lines: &[
            "- -role-change slave S2 @ mymaster S0 new reported role is master",
            "* +convert-to-slave slave S2 @ mymaster S0",
            "- +role-change slave S2 @ mymaster S0 new reported role is slave",
        ],
        expected_flags: &[(Server(2), "slave")],
    },
    Scenario {
        name: "a replica follows another",
        steps: &[ScenarioStep::CommandServer(2, "REPLICAOF 127.0.0.1 S1")],
        expected_lines: &["* +fix-slave-config slave S2 @ mymaster S0"],
        expected_flags: &[(Server(2), "slave")],
    },
];

const MASTER_STATE_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "too few can agree that the master is down",
        steps: &[
            ScenarioStep::CommandAllSentinels("SENTINEL SET mymaster quorum 4"),
            ScenarioStep::Freeze(Server(0)),
        ],
        expected_lines: &["# +set master mymaster S0 quorum 4", "# +sdown master mymaster S0"],
        expected_flags: &[(Sentinel(1), "sentinel,master_down"), (Sentinel(2), "sentinel,master_down")],
    },
    Scenario {
        name: "it was only slow",
        steps: &[ScenarioStep::Thaw(Server(0))],
        expected_lines: &["# -sdown master mymaster S0"],
        expected_flags: &[(Master, "master")],
    },
    Scenario {
        name: "the master is started again",
        steps: &[ScenarioStep::Kill(Server(0)), ScenarioStep::StartProcess(Server(0))],
        expected_lines: &["* +reboot master mymaster S0"],
        expected_flags: &[(Master, "master"), (Server(1), "slave"), (Server(2), "slave")],
    },
    Scenario {
        name: "the master wants a password",
        steps: &[
            ScenarioStep::CommandServer(0, "CONFIG SET requirepass secret"),
            ScenarioStep::CommandSentinel("SENTINEL SET mymaster auth-pass wrong"),
        ],
        expected_lines: &["# +set master mymaster S0 auth-pass ******", "# +sdown master mymaster S0"],
        expected_flags: &[(Master, "s_down,master,disconnected")],
    },
    Scenario {
        name: "and gets it",
        steps: &[ScenarioStep::CommandSentinel("SENTINEL SET mymaster auth-pass secret")],
        expected_lines: &["# -sdown master mymaster S0"],
        expected_flags: &[(Master, "master")],
    },
];

const BUSY_MASTER_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a master with data is started again and loads it",
        steps: &[
            ScenarioStep::CommandAllSentinels(
                "SENTINEL SET mymaster quorum 4 master-reboot-down-after-period 60000",
            ),
            ScenarioStep::CommandServer(0, "CONFIG SET rdbcompression no"),
            ScenarioStep::RunScript(0, "for i = 1, 300 do redis.call('set', i, ('x'):rep(2000)) end"),
            ScenarioStep::CommandServer(0, "SAVE"),
            ScenarioStep::Kill(Server(0)),
            ScenarioStep::StartServerWithOptions(
                0,
                "--key-load-delay 100000 --loading-process-events-interval-bytes 1024",
            ),
        ],
        expected_lines: &["* +reboot master mymaster S0"],
        expected_flags: &[(Master, "master,master_reboot")],
    },
    Scenario {
        name: "and has loaded it",
        steps: &[ScenarioStep::CommandServer(0, "CONFIG SET key-load-delay 0")],
        expected_lines: &[],
        expected_flags: &[(Master, "master")],
    },
    Scenario {
        name: "a script that has written does not end",
        steps: &[
            ScenarioStep::CommandServer(0, "CONFIG SET busy-reply-threshold 100"),
            ScenarioStep::StartEndlessScript(0, "redis.call('set', 'k', 'v') while true do end"),
        ],
        expected_lines: &["# +sdown master mymaster S0"],
        expected_flags: &[(Master, "s_down,master,script_kill_sent")],
    },
    Scenario {
        name: "the server is ended",
        steps: &[
            ScenarioStep::Kill(Server(0)),
            ScenarioStep::DeleteData(0),
            ScenarioStep::StartProcess(Server(0)),
        ],
        expected_lines: &["* +reboot master mymaster S0", "# -sdown master mymaster S0"],
        expected_flags: &[(Master, "master")],
    },
];

const SENTINEL_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a sentinel is killed",
        steps: &[ScenarioStep::Kill(Sentinel(2))],
        expected_lines: &["# +sdown sentinel I2 T2 @ mymaster S0"],
        expected_flags: &[(Sentinel(2), "s_down,sentinel,disconnected")],
    },
    Scenario {
        name: "and comes back",
        steps: &[ScenarioStep::StartProcess(Sentinel(2))],
        expected_lines: &["# -sdown sentinel I2 T2 @ mymaster S0"],
        expected_flags: &[(Sentinel(2), "sentinel")],
    },
    Scenario {
        name: "a sentinel has another address",
        steps: &[ScenarioStep::SendHello("127.0.0.1,1,I2,0,mymaster,127.0.0.1,S0,0")],
        expected_lines: &["* +sentinel-address-switch master mymaster S0 ip 127.0.0.1 port 1 for I2"],
        expected_flags: &[(Sentinel(2), "sentinel")],
    },
    Scenario {
        name: "a greeting has a newer epoch",
        steps: &[ScenarioStep::SendHello("127.0.0.1,T1,I1,5,mymaster,127.0.0.1,S0,0")],
        expected_lines: &["# +new-epoch 5"],
        expected_flags: &[],
    },
    Scenario {
        name: "the sentinel itself stands still",
        steps: &[
            ScenarioStep::CommandSentinel("SENTINEL DEBUG tilt-trigger 1000 tilt-period 1500"),
            ScenarioStep::Stall(Sentinel(0)),
        ],
        expected_lines: &["# +tilt #tilt mode entered", "# -tilt #tilt mode exited"],
        expected_flags: &[(Master, "master")],
    },
    Scenario {
        name: "another sentinel is where one was",
        steps: &[ScenarioStep::SendHello(
            "127.0.0.1,T2,0123456789012345678901234567890123456789,0,mymaster,127.0.0.1,S0,0",
        )],
        expected_lines: &[
            "* +sentinel-invalid-addr sentinel I2 T2 @ mymaster S0",
            "* +sentinel sentinel 0123456789012345678901234567890123456789 T2 @ mymaster S0",
        ],
        expected_flags: &[],
    },
];

const AGREEMENT_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "nobody is fit to be promoted",
        steps: &[
            ScenarioStep::CommandServer(1, "CONFIG SET replica-priority 0"),
            ScenarioStep::CommandServer(2, "CONFIG SET replica-priority 0"),
            ScenarioStep::WaitForField(1, "slave-priority", "0"),
            ScenarioStep::WaitForField(2, "slave-priority", "0"),
            ScenarioStep::Kill(Server(0)),
        ],
        expected_lines: &["# +sdown master mymaster S0", "# +odown master mymaster S0 #quorum"],
        expected_flags: &[(Master, "s_down,o_down,master,disconnected")],
    },
    Scenario {
        name: "and the master comes back",
        steps: &[ScenarioStep::StartProcess(Server(0))],
        expected_lines: &["# -sdown master mymaster S0", "# -odown master mymaster S0"],
        expected_flags: &[(Master, "master")],
    },
];

const CONFIGURATION_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a setting",
        steps: &[ScenarioStep::CommandSentinel("SENTINEL SET mymaster parallel-syncs 2")],
        expected_lines: &["# +set master mymaster S0 parallel-syncs 2"],
        expected_flags: &[(Master, "master"), (Server(1), "slave"), (Sentinel(1), "sentinel")],
    },
    Scenario {
        name: "all is forgotten and found again",
        steps: &[ScenarioStep::CommandSentinel("SENTINEL RESET *")],
        expected_lines: &[
            "# +reset-master master mymaster S0",
            "* +slave slave S1 @ mymaster S0",
            "* +slave slave S2 @ mymaster S0",
            "* +sentinel sentinel I1 T1 @ mymaster S0",
            "* +sentinel sentinel I2 T2 @ mymaster S0",
        ],
        expected_flags: &[(Master, "master")],
    },
    Scenario {
        name: "the master is watched no more, and again",
        steps: &[
            ScenarioStep::CommandSentinel("SENTINEL REMOVE mymaster"),
            ScenarioStep::CommandSentinel("SENTINEL MONITOR mymaster 127.0.0.1 S0 2"),
        ],
        expected_lines: &["# -monitor master mymaster S0", "# +monitor master mymaster S0 quorum 2"],
        expected_flags: &[(Master, "master")],
    },
    Scenario {
        name: "another sentinel tells of a newer configuration",
        steps: &[
            ScenarioStep::WaitForField(1, "flags", "slave"),
            ScenarioStep::WaitForField(2, "flags", "slave"),
            ScenarioStep::SendHello("127.0.0.1,T1,I1,9,mymaster,127.0.0.1,S1,9"),
        ],
        expected_lines: &[
            "# +new-epoch 9",
            "# +config-update-from sentinel I1 T1 @ mymaster S0",
            "# +switch-master mymaster S0 S1",
            "* +slave slave S0 @ mymaster S1",
            "* +slave slave S2 @ mymaster S1",
        ],
        expected_flags: &[],
    },
];

/// The first replica is promoted. The second replica has no data and gets none, because the new master delays its full
/// resync. The old master is frozen, so the third replica has no more data than the first and needs no full resync.
const REPLICA_WITHOUT_DATA_SCENARIO: Scenario = Scenario {
    name: "a replica has lost its data",
    steps: &[
        ScenarioStep::CommandAllSentinels(
            "SENTINEL SET mymaster down-after-milliseconds 60000 failover-timeout 180000",
        ),
        ScenarioStep::CommandAllSentinels("SENTINEL SET mymaster parallel-syncs 3"),
        ScenarioStep::CommandServer(1, "CONFIG SET replica-priority 1"),
        ScenarioStep::WaitForField(1, "slave-priority", "1"),
        ScenarioStep::CommandServer(1, "CONFIG SET repl-diskless-sync-delay 100"),
        ScenarioStep::Freeze(Server(0)),
        ScenarioStep::Kill(Server(2)),
        ScenarioStep::DeleteData(2),
        ScenarioStep::StartProcess(Server(2)),
    ],
    expected_lines: &["* +reboot slave S2 @ mymaster S0"],
    expected_flags: &[(Server(2), "slave")],
};

const WAITING_FAILOVER_SCENARIOS: &[Scenario] = &[
    REPLICA_WITHOUT_DATA_SCENARIO,
    Scenario {
        name: "a failover by hand",
        steps: &[ScenarioStep::CommandSentinel("SENTINEL FAILOVER mymaster")],
        expected_lines: &[
            "# +new-epoch 1",
            "# +try-failover master mymaster S0",
            "# +elected-leader master mymaster S0",
            "# +failover-state-select-slave master mymaster S0",
            "# +selected-slave slave S1 @ mymaster S0",
            "* +failover-state-send-slaveof-noone slave S1 @ mymaster S0",
            "* +failover-state-wait-promotion slave S1 @ mymaster S0",
            "# +promoted-slave slave S1 @ mymaster S0",
            "# +failover-state-reconf-slaves master mymaster S0",
            "* +slave-reconf-sent slave S2 @ mymaster S0",
            "* +slave-reconf-inprog slave S2 @ mymaster S0",
            "* +slave-reconf-sent slave S3 @ mymaster S0",
            "* +slave-reconf-inprog slave S3 @ mymaster S0",
            "* +slave-reconf-done slave S3 @ mymaster S0",
        ],
        expected_flags: &[
            (Master, "master,failover_in_progress,force_failover"),
            (Server(1), "slave,promoted"),
            (Server(2), "slave,reconf_inprog"),
            (Server(3), "slave,reconf_done"),
        ],
    },
    Scenario {
        name: "the last replica gets its copy",
        steps: &[ScenarioStep::CommandServer(1, "CONFIG SET repl-diskless-sync-delay 0")],
        expected_lines: &[
            "* +slave-reconf-done slave S2 @ mymaster S0",
            "# +failover-end master mymaster S0",
            "# +switch-master mymaster S0 S1",
            "* +slave slave S0 @ mymaster S1",
            "* +slave slave S2 @ mymaster S1",
            "* +slave slave S3 @ mymaster S1",
        ],
        expected_flags: &[(Master, "master"), (Server(2), "slave"), (Server(3), "slave")],
    },
];

const ABORTED_FAILOVER_SCENARIOS: &[Scenario] = &[
    REPLICA_WITHOUT_DATA_SCENARIO,
    Scenario {
        name: "a replica does not answer",
        steps: &[
            ScenarioStep::CommandAllSentinels("SENTINEL DEBUG slave-reconf-timeout 60000"),
            ScenarioStep::Freeze(Server(3)),
            ScenarioStep::CommandSentinel("SENTINEL FAILOVER mymaster"),
        ],
        expected_lines: &["* +slave-reconf-sent slave S3 @ mymaster S0"],
        expected_flags: &[(Server(2), "slave,reconf_inprog"), (Server(3), "slave,reconf_sent")],
    },
    Scenario {
        name: "it is told again",
        steps: &[ScenarioStep::CommandSentinel("SENTINEL DEBUG slave-reconf-timeout 1000")],
        expected_lines: &[
            "* -slave-reconf-sent-timeout slave S3 @ mymaster S0",
            "* +slave-reconf-sent slave S3 @ mymaster S0",
        ],
        expected_flags: &[(Server(2), "slave,reconf_inprog")],
    },
    Scenario {
        name: "the failover ends without either",
        steps: &[ScenarioStep::CommandSentinel("SENTINEL SET mymaster failover-timeout 1000")],
        expected_lines: &[
            "# +failover-end-for-timeout master mymaster S0",
            "* +slave-reconf-sent-be slave S2 @ mymaster S0",
            "# +failover-end master mymaster S0",
            "# +switch-master mymaster S0 S1",
        ],
        expected_flags: &[(Master, "master")],
    },
];

const HANDOVER_SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "the heir does not answer",
        steps: &[
            ScenarioStep::CommandAllSentinels("SENTINEL SET mymaster down-after-milliseconds 60000"),
            ScenarioStep::CommandServer(1, "CONFIG SET replica-priority 1"),
            ScenarioStep::WaitForField(1, "slave-priority", "1"),
            ScenarioStep::Freeze(Server(1)),
            ScenarioStep::CommandSentinel("SENTINEL FAILOVER mymaster COORDINATED"),
        ],
        expected_lines: &["# +try-failover master mymaster S0", "# +selected-slave slave S1 @ mymaster S0"],
        expected_flags: &[
            (Master, "master,failover_in_progress,coordinated_failover"),
            (Server(1), "slave,promoted"),
            (Server(2), "slave"),
        ],
    },
    Scenario {
        name: "it answers",
        steps: &[ScenarioStep::Thaw(Server(1))],
        expected_lines: &["# +failover-end master mymaster S0", "# +switch-master mymaster S0 S1"],
        expected_flags: &[(Master, "master"), (Server(0), "slave"), (Server(2), "slave")],
    },
];
