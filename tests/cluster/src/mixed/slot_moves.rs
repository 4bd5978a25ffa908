//! Tests of slots that change owners in clusters of Redoubt with a real Redis 7.0 or Valkey: an operator moves them
//! back and forth, or a master loses them while it is away and learns of that only by UPDATE messages.

use harness::{
    Cluster, Node, Program, cluster_info_field, eventually, fill_cluster, find_lost_keys, slot_of, slot_owner,
};

fn other_programs() -> impl Iterator<Item = Program> {
    std::iter::once(Program::redis()).chain(Program::valkey())
}

/// Moves the slots of all keys to the other master, and then back.
#[test]
fn slots_move_between_redoubt_and_other_masters_with_all_keys() {
    for other in other_programs() {
        let kinds = [&Program::redoubt(), &other, &other];
        let cluster = Cluster::join_nodes(kinds.map(Node::start_clustered).into(), 2);
        let keys: Vec<String> =
            (0..6).flat_map(|tag| fill_cluster(&cluster, &format!("{{tag{tag}}}"), 50)).collect();
        let slots: Vec<u16> = (0..6).map(|tag| slot_of(&format!("{{tag{tag}}}:0"))).collect();
        for target in [1, 0] {
            for slot in &slots {
                harness::move_slot(&cluster.nodes, *slot, target).expect("no node refuses");
            }
            for slot in &slots {
                cluster.wait_for_owner(*slot, |port| port == cluster.nodes[target].port);
            }
            cluster.wait_until_ok();
            assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new(), "{}", other.name());
            assert_eq!(cluster.key_count(), keys.len() as i64, "{}", other.name());
        }
    }
}

/// A master is killed and replaced by its replica. When the killed master comes back, its successor is frozen, so only
/// the other masters can tell it that its claim is outdated.
fn assert_returning_master_learns_new_owner(returning_program: &Program, other_program: &Program) {
    let mut nodes = vec![Node::start_clustered(returning_program)];
    nodes.extend((0..3).map(|_| Node::start_clustered(other_program)));
    let mut cluster = Cluster::join_nodes(nodes, 3);
    cluster.wait_until_replica_is_known(3, 0);
    // The master is killed rather than frozen, because a resumed process would read the packets that its successor sent
    // before.
    cluster.nodes[0].kill();
    let [_, second, third, successor] = &cluster.nodes[..] else { panic!("four nodes") };
    for witness in [second, third] {
        eventually("the replica has taken over", || {
            (slot_owner(&mut witness.connect(), 0)? == successor.port).then_some(())
        });
    }
    let updates = |node: &Node, way: &str| {
        let field = format!("cluster_stats_messages_update_{way}");
        cluster_info_field(&mut node.connect(), &field)
            .map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    successor.freeze();
    let before = updates(second, "sent") + updates(third, "sent");
    cluster.nodes[0].launch();
    let [old, second, third, successor] = &cluster.nodes[..] else { panic!("four nodes") };
    eventually("the old master knows the new owner of its slots", || {
        (slot_owner(&mut old.connect(), 0)? == successor.port).then_some(())
    });
    eventually("it was told by an UPDATE", || (updates(old, "received") > 0).then_some(()));
    assert!(updates(second, "sent") + updates(third, "sent") > before);
    let nodes = old.run("CLUSTER NODES").text();
    let line = nodes.lines().find(|line| line.contains("myself")).expect("it knows itself").to_owned();
    assert!(line.contains("myself,slave") && line.contains(&cluster_id(&nodes, successor)), "{nodes}");
    successor.thaw();
    eventually("it has its successor's data", || {
        (old.info("replication", "master_link_status")? == "up").then_some(())
    });
    cluster.wait_until_ok();
}

/// Looks up the id of a node that may be unreachable.
fn cluster_id(cluster_nodes_reply: &str, node: &Node) -> String {
    let address = format!(":{}@", node.port);
    let line = cluster_nodes_reply.lines().find(|line| line.contains(&address)).expect("it is known");
    line.split(' ').next().expect("an id").to_owned()
}

#[test]
fn returning_redis_or_valkey_learns_new_owner_from_redoubt_update() {
    for other in other_programs() {
        assert_returning_master_learns_new_owner(&other, &Program::redoubt());
    }
}

#[test]
fn returning_redoubt_learns_new_owner_from_redis_or_valkey_update() {
    for other in other_programs() {
        assert_returning_master_learns_new_owner(&Program::redoubt(), &other);
    }
}
