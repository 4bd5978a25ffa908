//! Tests of CLUSTER FAILOVERS and `redoubt cluster failovers`, which show the failover history that each node records.

use std::process::Command;

use harness::{Cluster, Node, Program, Reply, eventually, keys_for_all_slots, run_to_end};

fn start_cluster() -> Cluster {
    Cluster::start(&Program::redoubt(), 3, 1)
}

/// The recorded steps of the failover of `failed` on the node `witness`, and its result.
fn recorded_failover(witness: &Node, failed_node: &str) -> Option<(String, Vec<(i64, String)>)> {
    let reply = witness.run("CLUSTER FAILOVERS");
    let failover = reply.items().iter().find(|failover| failover.items()[1].text() == failed_node)?;
    let fields: Vec<&Reply> = failover.items().iter().collect();
    let named = |name: &str| {
        fields.iter().position(|field| matches!(field, Reply::Bulk(text) if text == name.as_bytes()))
    };
    let steps = fields[named("steps")? + 1].items();
    let steps = steps.iter().map(|step| (step.items()[0].int(), step.items()[1].text())).collect();
    Some((fields[named("outcome")? + 1].text(), steps))
}

/// The time of the first recorded step that begins with `start`.
fn time_of_step(steps: &[(i64, String)], prefix: &str) -> i64 {
    let step = steps.iter().find(|(_, text)| text.starts_with(prefix));
    step.unwrap_or_else(|| panic!("no step '{prefix}': {steps:?}")).0
}

#[test]
fn new_master_and_voter_record_failover_steps() {
    let mut cluster = start_cluster();
    let failed = cluster.nodes[0].run("CLUSTER MYID").text();
    let (voter, successor) = (cluster.nodes[1].address(), cluster.nodes[3].address());
    assert_eq!(cluster.nodes[3].run("CLUSTER FAILOVERS"), Reply::Array(Vec::new()));
    cluster.nodes[0].kill();
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
    cluster.wait_until_ok();
    cluster.nodes[3].run(&format!("SET {} 1", keys_for_all_slots()[0])).expect_ok();

    let (outcome, steps) = eventually("the first write is recorded", || {
        recorded_failover(&cluster.nodes[3], &failed)
            .filter(|(_, steps)| steps.iter().any(|(_, text)| text.contains("first write")))
    });
    assert_eq!(outcome, "replaced");
    let order = [
        "suspected by ",
        "agreed to have failed",
        "candidate this node: offset ",
        "this node stands for election: rank 0, offset ",
        "it asks for votes in epoch ",
        "this node takes over its slots in epoch ",
        "this node accepts the first write",
    ];
    let times: Vec<i64> = order.iter().map(|start| time_of_step(&steps, start)).collect();
    assert!(times.is_sorted() && times[0] == 0, "{steps:?}");
    time_of_step(&steps, &format!("{voter} votes for it"));

    let (outcome, steps) = recorded_failover(&cluster.nodes[1], &failed).expect("it was there");
    assert_eq!(outcome, "replaced");
    time_of_step(&steps, &format!("this node votes for {successor} in epoch "));
    time_of_step(&steps, &format!("candidate {successor}: offset "));
    assert!(steps.iter().any(|(_, text)| text == "suspected by this node (refused)"), "{steps:?}");
    assert_eq!(cluster.nodes[1].run("CLUSTER FAILOVERS nonsense"), Reply::Error("ERR syntax error".into()));

    let json = cluster.nodes[1].run("CLUSTER FAILOVERS JSON");
    let json: serde_json::Value = serde_json::from_str(&json.text()).unwrap();
    assert_eq!(json[0]["node"], failed.as_str());
    assert_eq!(json[0]["steps"].as_array().map(Vec::len), Some(steps.len()));

    let url = format!("redis://{successor}");
    let (status, drawn) =
        run_to_end(Command::new(Program::redoubt().binary()).args(["cluster", "failovers", "--from", &url]));
    assert!(status.success(), "{drawn}");
    assert!(
        drawn.contains("replaced, began") && drawn.contains("| this node takes over its slots"),
        "{drawn}"
    );
}

#[test]
fn manual_failover_is_recorded_and_concurrent_request_is_refused() {
    let cluster = start_cluster();
    let master = cluster.nodes[0].run("CLUSTER MYID").text();
    // One of the two voters does not reply, so that the failover runs for a while.
    cluster.nodes[1].freeze();
    cluster.nodes[3].run("CLUSTER FAILOVER").expect_ok();
    let running = Reply::Error("ERR Manual failover is already in progress".into());
    assert_eq!(cluster.nodes[3].run("CLUSTER FAILOVER"), running);
    cluster.nodes[1].thaw();
    let (_, steps) = eventually("it is carried out", || {
        recorded_failover(&cluster.nodes[3], &master).filter(|(outcome, _)| outcome == "replaced")
    });
    assert_eq!(time_of_step(&steps, "this node is to take its place at an operator's request"), 0);
}
