//! Tests of the `make up-sentinel` commands, run as a user runs them.

use std::net::TcpListener;

use harness::{Connection, LocalServers, LocalSetup, Reply, eventually};

/// The role reported by a server, or `None` while the server closes its connections after a role change.
fn read_role(servers: &LocalServers, index: u16) -> Option<Vec<String>> {
    let mut connection = Connection::open(("127.0.0.1", servers.first_port + index)).ok()?;
    let reply = connection.try_call(&["ROLE"]).ok()?;
    let word = |value: &Reply| match value {
        Reply::Bulk(_) => value.text(),
        _ => String::new(),
    };
    Some(reply.items().iter().map(word).collect())
}

/// The state of a member in the printed table.
fn member_state(output: &str, port: u16) -> String {
    let line = output.lines().find(|line| line.starts_with(&format!("{port} ")));
    let line = line.unwrap_or_else(|| panic!("no row for {port}:\n{output}"));
    line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
}

fn list_configurations() -> Vec<String> {
    let read = |name: &str| {
        std::fs::read_to_string(LocalServers::repository_root().join("cluster-configs/sentinel").join(name))
    };
    ["server.conf", "sentinel.conf"].map(|name| read(name).expect("it is in the repository")).into()
}

#[test]
fn local_group_starts_fails_over_restarts_and_stops() {
    let before = list_configurations();
    let place = LocalServers::new(LocalSetup::SentinelGroup);
    let base = place.first_port;
    let output = place.start_servers().expect("make up-sentinel works");
    let states: Vec<String> = (0..3).map(|index| member_state(&output, base + index)).collect();
    assert_eq!(states, ["master", "slave", "slave"]);
    for index in 3..LocalServers::SERVER_COUNT {
        assert_eq!(member_state(&output, base + index), format!("sends clients to 127.0.0.1 {base}"));
    }
    assert!(
        output.contains(&format!("redis-cli -p {} SENTINEL", base + 3)),
        "it says how to connect:\n{output}"
    );

    place.connect(0).call_line("SET hello kept").expect_ok();
    assert_eq!(place.connect(0).call_line("WAIT 2 20000").int(), 2);
    let output = place.run_make(&["kill", &format!("NODE={base}")]).expect("make kill works");
    assert!(output.contains(&format!("Killed the master {base}; the sentinels promoted")), "{output}");
    assert_eq!(member_state(&output, base), "down");
    let successor = eventually("one of the others is the master", || {
        (1..3).find(|&index| read_role(&place, index).is_some_and(|role| role[0] == "master"))
    });
    assert_eq!(place.connect(successor).call_line("GET hello").text(), "kept");

    let output = place.run_make(&["restart", &format!("NODE={base}")]).expect("make restart works");
    let states: Vec<String> = (0..3).map(|index| member_state(&output, base + index)).collect();
    assert_eq!(states.iter().filter(|state| *state == "master").count(), 1, "{output}");
    assert_eq!(states[0], "slave", "it has found its place before the table is printed: {output}");
    let followed = read_role(&place, 0).expect("it answers");
    assert_eq!((followed[0].as_str(), followed[3].as_str()), ("slave", "connected"));
    let status = place.run_make(&["status"]).expect("make status works");
    assert_eq!(member_state(&status, base), "slave");
    let again = place.run_make(&["up-sentinel"]).expect("make up-sentinel twice is fine");
    assert!(again.contains("is up already"), "{again}");
    let output =
        place.run_make(&["kill", &format!("NODE={}", base + 5)]).expect("make kill works on a sentinel");
    assert!(output.contains("which was not the master"), "{output}");

    let output = place.run_make(&["down-sentinel"]).expect("make down-sentinel works");
    assert!(output.contains("Stopped the group"), "{output}");
    assert!(!place.data_folder().exists());
    assert!(
        (0..LocalServers::SERVER_COUNT).all(|index| TcpListener::bind(("127.0.0.1", base + index)).is_ok()),
        "every port is free"
    );
    assert_eq!(list_configurations(), before, "nobody wrote into the repository");
}

#[test]
fn local_group_commands_explain_mistakes() {
    let place = LocalServers::new(LocalSetup::SentinelGroup);
    let explains = |arguments: &[&str], words: &str| {
        let output = place.run_make(arguments).expect_err("a mistake is an error");
        assert!(output.contains(words), "make {}: {output}", arguments.join(" "));
    };
    explains(&["up-sentinel", "PORT=banana"], "name a port between");
    let in_use = TcpListener::bind(("127.0.0.1", place.first_port + 4)).expect("the port was claimed");
    explains(
        &["up-sentinel", &format!("PORT={}", place.first_port)],
        &format!("Port {} is in use", place.first_port + 4),
    );
    drop(in_use);
    let output = place.run_make(&["down-sentinel"]).expect("there is nothing to stop");
    assert!(output.contains("nothing to stop"), "{output}");
}
