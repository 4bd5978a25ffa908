use std::sync::atomic::Ordering;

use super::*;
use crate::settings::Gate;
use crate::testing::Client;

#[test]
fn a_pipeline_runs_in_order_and_refusals_do_not_stop_it() {
    let mut client = Client::new();
    client.table(&[
        ("set k v\nget k\nnosuch a b\nget\nping", "+OK|$1|v|-ERR unknown command 'nosuch', with args beginning with: 'a' 'b' |-ERR wrong number of arguments for 'get' command|+PONG"),
    ]);
    let stats = &client.worker.stats.commands[Registry::the().find(b"get").unwrap().index];
    assert_eq!(stats.calls.load(Ordering::Relaxed), 1);
    assert_eq!(stats.rejected.load(Ordering::Relaxed), 1);
}

#[test]
fn states_of_the_node_refuse_what_they_must() {
    let mut client = Client::new();
    let table = [
        (Gate::LOADING, "get k", "-LOADING Redis is loading the dataset in memory"),
        (Gate::READ_ONLY_REPLICA, "set k v", "-READONLY You can't write against a read only replica."),
        (Gate::READ_ONLY_REPLICA, "get k", "$-1"),
        (Gate::NO_REPLICAS, "set k v", "-NOREPLICAS Not enough good replicas to write."),
        (Gate::OUT_OF_MEMORY, "set k v", "-OOM command not allowed when used memory > 'maxmemory'."),
        (Gate::OUT_OF_MEMORY, "get k", "$-1"),
        (Gate::CLUSTER_DOWN, "get k", "-CLUSTERDOWN The cluster is down"),
        (Gate::CLUSTER_DOWN, "ping", "+PONG"),
    ];
    for (state, line, reply) in table {
        client.engine.settings.set_gate(state, true);
        client.table(&[(line, reply)]);
        client.engine.settings.set_gate(state, false);
    }
    client.session.authenticated = false;
    client.table(&[("get k", "-NOAUTH Authentication required.")]);
}

#[test]
fn effects_reach_the_log_and_reads_do_not() {
    let mut client = Client::logged();
    client.wire("set k v\nget k");
    assert_eq!(client.log(), ["0 set k v"]);
    assert_eq!(client.session.last_write, slot_routing::ReplOffset(27));
    assert_eq!(client.call(&["get", "k"]), resp::Value::Bulk(b"v".to_vec()));
}
