//! Tests of `make up` and the related make targets, run as a user runs them.

use std::net::TcpListener;

use harness::{LocalServers, LocalSetup};

/// The row of a node in the printed table.
fn node_row(output: &str, port: u16) -> Vec<String> {
    let line = output.lines().find(|line| line.starts_with(&format!("{port} ")));
    line.unwrap_or_else(|| panic!("no row for {port}:\n{output}"))
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn list_configurations() -> Vec<String> {
    let read = |number: u16| {
        std::fs::read_to_string(
            LocalServers::repository_root().join(format!("cluster-configs/{}.conf", 7000 + number)),
        )
    };
    (0..LocalServers::SERVER_COUNT).map(|number| read(number).expect("it is in the repository")).collect()
}

#[test]
fn make_targets_start_kill_restart_and_stop_a_cluster() {
    let before = list_configurations();
    let place = LocalServers::new(LocalSetup::Cluster);
    let base = place.first_port;
    let output = place.start_servers().expect("make up works");
    assert_eq!(node_row(&output, base), [&base.to_string(), "master", "0-5460", "0", "ok"]);
    assert_eq!(
        node_row(&output, base + 3),
        [&(base + 3).to_string(), "replica", "-", "0", "ok", &base.to_string()]
    );
    assert!(output.contains(&format!("redis-cli -c -p {base}")), "it says what to try next:\n{output}");

    // As in the README, a key is written through the first node and must still exist after its master is killed.
    let mut first = place.connect(0);
    first.call_line("SET hello kept").expect_ok();
    first.call_line("CONFIG SET maxmemory 100mb").expect_ok();
    first.call_line("CONFIG REWRITE").expect_ok();
    assert_eq!(first.call_line("WAIT 1 20000").int(), 1);
    let output = place.run_make(&["kill", &format!("NODE={base}")]).expect("make kill works");
    assert!(output.contains(&format!("{} took over its slots after", base + 3)), "{output}");
    assert_eq!(
        node_row(&output, base + 3)[..4],
        [(base + 3).to_string(), "master".into(), "0-5460".into(), "1".into()]
    );
    assert_eq!(node_row(&output, base)[4], "down");
    assert_eq!(place.connect(3).call_line("GET hello").text(), "kept");

    let output = place.run_make(&["restart", &format!("NODE={base}")]).expect("make restart works");
    assert_eq!(node_row(&output, base)[1..], ["replica", "-", "1", "ok", &(base + 3).to_string()]);

    assert_eq!(
        place.connect(0).call_line("CONFIG GET maxmemory").items()[1].text(),
        "104857600",
        "it was kept"
    );
    assert_eq!(list_configurations(), before, "nobody wrote into the repository");

    let again = place.start_servers().expect("make up twice is fine");
    assert!(again.contains("is up already"), "{again}");
    let status = place.run_make(&["status"]).expect("make status works");
    assert_eq!(node_row(&status, base + 3)[1], "master");

    let output = place.run_make(&["down"]).expect("make down works");
    assert!(output.contains("Stopped 6 nodes"), "{output}");
    assert!(!place.data_folder().exists());
    assert!(
        (0..LocalServers::SERVER_COUNT).all(|index| TcpListener::bind(("127.0.0.1", base + index)).is_ok()),
        "every port is free"
    );
}

/// For each mistake of a user, the error must say what to do.
#[test]
fn local_cluster_errors_explain_what_to_do() {
    let place = LocalServers::new(LocalSetup::Cluster);
    let base = place.first_port;
    let explains = |arguments: &[&str], words: &str| {
        let output = place.run_make(arguments).expect_err("a mistake is an error");
        assert!(output.contains(words), "make {}: {output}", arguments.join(" "));
    };
    explains(&["status"], "Start one with: make up");
    explains(&["kill", "NODE=1"], "Start one with: make up");
    explains(&["up", "PORT=banana"], "name a port between");
    let in_use = TcpListener::bind(("127.0.0.1", base + 2)).expect("the port was claimed");
    explains(&["up", &format!("PORT={base}")], &format!("Port {} is in use", base + 2));
    drop(in_use);
    let bus_in_use = TcpListener::bind(("127.0.0.1", base + 10_001)).expect("the port was claimed");
    explains(&["up", &format!("PORT={base}")], &format!("Port {} is in use", base + 10_001));
    drop(bus_in_use);

    std::fs::create_dir_all(place.data_folder().join("7000")).expect("the folder can be made");
    explains(&["up", &format!("PORT={base}")], "Remove them with: make down");
    place.run_make(&["down"]).expect("make down clears what was left");

    place.start_servers().expect("make up works");
    explains(&["kill"], &format!("make kill NODE={base}"));
    explains(&["kill", "NODE=1"], "is not one of this cluster's nodes");
    explains(&["up", "PORT=7100"], "Stop it first (make down)");
    place.run_make(&["kill", &format!("NODE={}", base + 5)]).expect("make kill works");
    explains(&["kill", &format!("NODE={}", base + 5)], "is not running");

    // `make up` restarts a killed node, and a cluster that was stopped completely restarts with its data.
    let output = place.start_servers().expect("make up repairs the cluster");
    assert_eq!(node_row(&output, base + 5)[1], "replica");
    place.run_make(&["down", "KEEP=1"]).expect("make down works");
    explains(&["status"], "make up");
    let output = place.start_servers().expect("make up starts it again");
    assert!((0..3).all(|index| node_row(&output, base + index)[4] == "ok"), "{output}");
}
