//! The test scenarios, grouped by the server group that they share.

use crate::story::{Deed, Member, Story};
use Member::{Master, Sentinel, Server};

/// All groups of scenarios: name, number of servers, and scenarios.
pub const CHAPTERS: &[(&str, usize, &[Story])] = &[
    ("replicas", 3, REPLICAS),
    ("replicas with a wrong master", 3, STRAY_REPLICAS),
    ("master", 3, A_MASTER),
    ("loading and busy master", 3, A_BUSY_MASTER),
    ("sentinels", 3, SENTINELS),
    ("agreement", 3, AGREEMENT),
    ("configuration", 3, CONFIGURATION),
    ("failover waiting for promotion", 4, A_HELD_FAILOVER),
    ("aborted failover", 4, AN_ENDLESS_FAILOVER),
    ("handover", 3, A_HANDOVER),
];

/// The scenarios with this name and the number of servers that they need.
///
/// # Panics
/// The name is unknown.
#[must_use]
pub fn chapter(name: &str) -> (usize, &'static [Story]) {
    let found = CHAPTERS.iter().find(|(chapter, ..)| *chapter == name);
    found.map(|(_, servers, stories)| (*servers, *stories)).expect("a chapter of this name")
}

const REPLICAS: &[Story] = &[
    Story {
        name: "a replica is killed",
        deeds: &[Deed::Kill(Server(2))],
        said: &["# +sdown slave S2 @ mymaster S0"],
        shown: &[
            (Master, "master"),
            (Server(1), "slave"),
            (Server(2), "s_down,slave,disconnected"),
            (Sentinel(1), "sentinel"),
        ],
    },
    Story {
        name: "it comes back",
        deeds: &[Deed::Launch(Server(2))],
        said: &["* +reboot slave S2 @ mymaster S0", "# -sdown slave S2 @ mymaster S0"],
        shown: &[(Server(2), "slave")],
    },
    Story {
        name: "a replica is frozen",
        deeds: &[Deed::Freeze(Server(2))],
        said: &["# +sdown slave S2 @ mymaster S0"],
        shown: &[],
    },
    Story {
        name: "it goes on",
        deeds: &[Deed::Thaw(Server(2))],
        said: &["# -sdown slave S2 @ mymaster S0"],
        shown: &[(Server(2), "slave")],
    },
];

const STRAY_REPLICAS: &[Story] = &[
    Story {
        name: "a replica takes itself for a master",
        deeds: &[Deed::Order(2, "REPLICAOF NO ONE")],
        said: &[
            "- -role-change slave S2 @ mymaster S0 new reported role is master",
            "* +convert-to-slave slave S2 @ mymaster S0",
            "- +role-change slave S2 @ mymaster S0 new reported role is slave",
        ],
        shown: &[(Server(2), "slave")],
    },
    Story {
        name: "a replica follows another",
        deeds: &[Deed::Order(2, "REPLICAOF 127.0.0.1 S1")],
        said: &["* +fix-slave-config slave S2 @ mymaster S0"],
        shown: &[(Server(2), "slave")],
    },
];

const A_MASTER: &[Story] = &[
    Story {
        name: "too few can agree that the master is down",
        deeds: &[Deed::AskAll("SENTINEL SET mymaster quorum 4"), Deed::Freeze(Server(0))],
        said: &["# +set master mymaster S0 quorum 4", "# +sdown master mymaster S0"],
        shown: &[(Sentinel(1), "sentinel,master_down"), (Sentinel(2), "sentinel,master_down")],
    },
    Story {
        name: "it was only slow",
        deeds: &[Deed::Thaw(Server(0))],
        said: &["# -sdown master mymaster S0"],
        shown: &[(Master, "master")],
    },
    Story {
        name: "the master is started again",
        deeds: &[Deed::Kill(Server(0)), Deed::Launch(Server(0))],
        said: &["* +reboot master mymaster S0"],
        shown: &[(Master, "master"), (Server(1), "slave"), (Server(2), "slave")],
    },
    Story {
        name: "the master wants a password",
        deeds: &[
            Deed::Order(0, "CONFIG SET requirepass secret"),
            Deed::Ask("SENTINEL SET mymaster auth-pass wrong"),
        ],
        said: &["# +set master mymaster S0 auth-pass ******", "# +sdown master mymaster S0"],
        shown: &[(Master, "s_down,master,disconnected")],
    },
    Story {
        name: "and gets it",
        deeds: &[Deed::Ask("SENTINEL SET mymaster auth-pass secret")],
        said: &["# -sdown master mymaster S0"],
        shown: &[(Master, "master")],
    },
];

const A_BUSY_MASTER: &[Story] = &[
    Story {
        name: "a master with data is started again and loads it",
        deeds: &[
            Deed::AskAll("SENTINEL SET mymaster quorum 4 master-reboot-down-after-period 60000"),
            Deed::Order(0, "CONFIG SET rdbcompression no"),
            Deed::Script(0, "for i = 1, 300 do redis.call('set', i, ('x'):rep(2000)) end"),
            Deed::Order(0, "SAVE"),
            Deed::Kill(Server(0)),
            Deed::Spawn(0, "--key-load-delay 100000 --loading-process-events-interval-bytes 1024"),
        ],
        said: &["* +reboot master mymaster S0"],
        shown: &[(Master, "master,master_reboot")],
    },
    Story {
        name: "and has loaded it",
        deeds: &[Deed::Order(0, "CONFIG SET key-load-delay 0")],
        said: &[],
        shown: &[(Master, "master")],
    },
    Story {
        name: "a script that has written does not end",
        deeds: &[
            Deed::Order(0, "CONFIG SET busy-reply-threshold 100"),
            Deed::EndlessScript(0, "redis.call('set', 'k', 'v') while true do end"),
        ],
        said: &["# +sdown master mymaster S0"],
        shown: &[(Master, "s_down,master,script_kill_sent")],
    },
    Story {
        name: "the server is ended",
        deeds: &[Deed::Kill(Server(0)), Deed::Lose(0), Deed::Launch(Server(0))],
        said: &["* +reboot master mymaster S0", "# -sdown master mymaster S0"],
        shown: &[(Master, "master")],
    },
];

const SENTINELS: &[Story] = &[
    Story {
        name: "a sentinel is killed",
        deeds: &[Deed::Kill(Sentinel(2))],
        said: &["# +sdown sentinel I2 T2 @ mymaster S0"],
        shown: &[(Sentinel(2), "s_down,sentinel,disconnected")],
    },
    Story {
        name: "and comes back",
        deeds: &[Deed::Launch(Sentinel(2))],
        said: &["# -sdown sentinel I2 T2 @ mymaster S0"],
        shown: &[(Sentinel(2), "sentinel")],
    },
    Story {
        name: "a sentinel has another address",
        deeds: &[Deed::Greet("127.0.0.1,1,I2,0,mymaster,127.0.0.1,S0,0")],
        said: &["* +sentinel-address-switch master mymaster S0 ip 127.0.0.1 port 1 for I2"],
        shown: &[(Sentinel(2), "sentinel")],
    },
    Story {
        name: "a greeting has a newer epoch",
        deeds: &[Deed::Greet("127.0.0.1,T1,I1,5,mymaster,127.0.0.1,S0,0")],
        said: &["# +new-epoch 5"],
        shown: &[],
    },
    Story {
        name: "the sentinel itself stands still",
        deeds: &[Deed::Ask("SENTINEL DEBUG tilt-trigger 1000 tilt-period 1500"), Deed::Stall(Sentinel(0))],
        said: &["# +tilt #tilt mode entered", "# -tilt #tilt mode exited"],
        shown: &[(Master, "master")],
    },
    Story {
        name: "another sentinel is where one was",
        deeds: &[Deed::Greet(
            "127.0.0.1,T2,0123456789012345678901234567890123456789,0,mymaster,127.0.0.1,S0,0",
        )],
        said: &[
            "* +sentinel-invalid-addr sentinel I2 T2 @ mymaster S0",
            "* +sentinel sentinel 0123456789012345678901234567890123456789 T2 @ mymaster S0",
        ],
        shown: &[],
    },
];

const AGREEMENT: &[Story] = &[
    Story {
        name: "nobody is fit to be promoted",
        deeds: &[
            Deed::Order(1, "CONFIG SET replica-priority 0"),
            Deed::Order(2, "CONFIG SET replica-priority 0"),
            Deed::Known(1, "slave-priority", "0"),
            Deed::Known(2, "slave-priority", "0"),
            Deed::Kill(Server(0)),
        ],
        said: &["# +sdown master mymaster S0", "# +odown master mymaster S0 #quorum"],
        shown: &[(Master, "s_down,o_down,master,disconnected")],
    },
    Story {
        name: "and the master comes back",
        deeds: &[Deed::Launch(Server(0))],
        said: &["# -sdown master mymaster S0", "# -odown master mymaster S0"],
        shown: &[(Master, "master")],
    },
];

const CONFIGURATION: &[Story] = &[
    Story {
        name: "a setting",
        deeds: &[Deed::Ask("SENTINEL SET mymaster parallel-syncs 2")],
        said: &["# +set master mymaster S0 parallel-syncs 2"],
        shown: &[(Master, "master"), (Server(1), "slave"), (Sentinel(1), "sentinel")],
    },
    Story {
        name: "all is forgotten and found again",
        deeds: &[Deed::Ask("SENTINEL RESET *")],
        said: &[
            "# +reset-master master mymaster S0",
            "* +slave slave S1 @ mymaster S0",
            "* +slave slave S2 @ mymaster S0",
            "* +sentinel sentinel I1 T1 @ mymaster S0",
            "* +sentinel sentinel I2 T2 @ mymaster S0",
        ],
        shown: &[(Master, "master")],
    },
    Story {
        name: "the master is watched no more, and again",
        deeds: &[
            Deed::Ask("SENTINEL REMOVE mymaster"),
            Deed::Ask("SENTINEL MONITOR mymaster 127.0.0.1 S0 2"),
        ],
        said: &["# -monitor master mymaster S0", "# +monitor master mymaster S0 quorum 2"],
        shown: &[(Master, "master")],
    },
    Story {
        name: "another sentinel tells of a newer configuration",
        deeds: &[
            Deed::Known(1, "flags", "slave"),
            Deed::Known(2, "flags", "slave"),
            Deed::Greet("127.0.0.1,T1,I1,9,mymaster,127.0.0.1,S1,9"),
        ],
        said: &[
            "# +new-epoch 9",
            "# +config-update-from sentinel I1 T1 @ mymaster S0",
            "# +switch-master mymaster S0 S1",
            "* +slave slave S0 @ mymaster S1",
            "* +slave slave S2 @ mymaster S1",
        ],
        shown: &[],
    },
];

/// The first replica is promoted. The second has no data and gets none, because the new master delays its full resync.
/// The old master is frozen, so the third replica has no more data than the first and needs no full resync.
const A_REPLICA_WITHOUT_DATA: Story = Story {
    name: "a replica has lost its data",
    deeds: &[
        Deed::AskAll("SENTINEL SET mymaster down-after-milliseconds 60000 failover-timeout 180000"),
        Deed::AskAll("SENTINEL SET mymaster parallel-syncs 3"),
        Deed::Order(1, "CONFIG SET replica-priority 1"),
        Deed::Known(1, "slave-priority", "1"),
        Deed::Order(1, "CONFIG SET repl-diskless-sync-delay 100"),
        Deed::Freeze(Server(0)),
        Deed::Kill(Server(2)),
        Deed::Lose(2),
        Deed::Launch(Server(2)),
    ],
    said: &["* +reboot slave S2 @ mymaster S0"],
    shown: &[(Server(2), "slave")],
};

const A_HELD_FAILOVER: &[Story] = &[
    A_REPLICA_WITHOUT_DATA,
    Story {
        name: "a failover by hand",
        deeds: &[Deed::Ask("SENTINEL FAILOVER mymaster")],
        said: &[
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
        shown: &[
            (Master, "master,failover_in_progress,force_failover"),
            (Server(1), "slave,promoted"),
            (Server(2), "slave,reconf_inprog"),
            (Server(3), "slave,reconf_done"),
        ],
    },
    Story {
        name: "the last replica gets its copy",
        deeds: &[Deed::Order(1, "CONFIG SET repl-diskless-sync-delay 0")],
        said: &[
            "* +slave-reconf-done slave S2 @ mymaster S0",
            "# +failover-end master mymaster S0",
            "# +switch-master mymaster S0 S1",
            "* +slave slave S0 @ mymaster S1",
            "* +slave slave S2 @ mymaster S1",
            "* +slave slave S3 @ mymaster S1",
        ],
        shown: &[(Master, "master"), (Server(2), "slave"), (Server(3), "slave")],
    },
];

const AN_ENDLESS_FAILOVER: &[Story] = &[
    A_REPLICA_WITHOUT_DATA,
    Story {
        name: "a replica does not answer",
        deeds: &[
            Deed::AskAll("SENTINEL DEBUG slave-reconf-timeout 60000"),
            Deed::Freeze(Server(3)),
            Deed::Ask("SENTINEL FAILOVER mymaster"),
        ],
        said: &["* +slave-reconf-sent slave S3 @ mymaster S0"],
        shown: &[(Server(2), "slave,reconf_inprog"), (Server(3), "slave,reconf_sent")],
    },
    Story {
        name: "it is told again",
        deeds: &[Deed::Ask("SENTINEL DEBUG slave-reconf-timeout 1000")],
        said: &[
            "* -slave-reconf-sent-timeout slave S3 @ mymaster S0",
            "* +slave-reconf-sent slave S3 @ mymaster S0",
        ],
        shown: &[(Server(2), "slave,reconf_inprog")],
    },
    Story {
        name: "the failover ends without either",
        deeds: &[Deed::Ask("SENTINEL SET mymaster failover-timeout 1000")],
        said: &[
            "# +failover-end-for-timeout master mymaster S0",
            "* +slave-reconf-sent-be slave S2 @ mymaster S0",
            "# +failover-end master mymaster S0",
            "# +switch-master mymaster S0 S1",
        ],
        shown: &[(Master, "master")],
    },
];

const A_HANDOVER: &[Story] = &[
    Story {
        name: "the heir does not answer",
        deeds: &[
            Deed::AskAll("SENTINEL SET mymaster down-after-milliseconds 60000"),
            Deed::Order(1, "CONFIG SET replica-priority 1"),
            Deed::Known(1, "slave-priority", "1"),
            Deed::Freeze(Server(1)),
            Deed::Ask("SENTINEL FAILOVER mymaster COORDINATED"),
        ],
        said: &["# +try-failover master mymaster S0", "# +selected-slave slave S1 @ mymaster S0"],
        shown: &[
            (Master, "master,failover_in_progress,coordinated_failover"),
            (Server(1), "slave,promoted"),
            (Server(2), "slave"),
        ],
    },
    Story {
        name: "it answers",
        deeds: &[Deed::Thaw(Server(1))],
        said: &["# +failover-end master mymaster S0", "# +switch-master mymaster S0 S1"],
        shown: &[(Master, "master"), (Server(0), "slave"), (Server(2), "slave")],
    },
];
