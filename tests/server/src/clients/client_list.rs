//! Tests of CLIENT LIST for replication connections.

use harness::{Node, Program, eventually};

/// On both sides of a replication link, CLIENT LIST counts the bytes and commands sent and received.
#[test]
fn client_list_counts_traffic_of_replication_links() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let options = "--save  --repl-diskless-sync-delay 0 --repl-ping-replica-period 1";
        let master = Node::start(&program, options);
        let replica = Node::start(&program, &format!("--save  --replicaof 127.0.0.1 {}", master.port));
        eventually("the link is up", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
        let count = |node: &Node, kind: &str, field: &str| -> u64 {
            let list = node.run(&format!("CLIENT LIST TYPE {kind}")).text();
            let value =
                list.split(&format!(" {field}=")).nth(1).and_then(|rest| rest.split([' ', '\n']).next());
            value.unwrap_or_else(|| panic!("no {field} in {list}")).parse().expect("a number")
        };
        let of_replica = |field: &str| count(&master, "replica", field);
        let of_master = |field: &str| count(&replica, "master", field);
        let (sent, received) = (of_replica("tot-net-out"), of_master("tot-net-in"));
        master.connect().call(&["SET", "large", &"x".repeat(100_001)]).expect_ok();
        let name = program.name();
        eventually("all of it was counted", || {
            let enough =
                of_replica("tot-net-out") > sent + 100_000 && of_master("tot-net-in") > received + 100_000;
            enough.then_some(())
        });
        let (acknowledged, commands) = (of_replica("tot-net-in"), of_replica("tot-cmds"));
        eventually("acknowledgements are counted", || {
            (of_replica("tot-net-in") > acknowledged && of_replica("tot-cmds") > commands).then_some(())
        });
        assert!(of_master("tot-cmds") > 0, "{name}: the master's commands are counted");
    }
}
