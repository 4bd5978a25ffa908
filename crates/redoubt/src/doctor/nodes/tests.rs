use super::super::finding::Severity;
use super::query::parse_cluster_nodes;
use super::*;

const CLUSTER_NODES_REPLY: &str = "\
a 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460
b 10.0.0.2:7000@17000,name master - 0 0 2 connected 5461-10922 [5461->-a]
c 10.0.0.3:7000@17000 master - 0 0 3 connected 10923-16382 16383
d 10.0.0.4:7000@17000 slave a 0 0 1 connected
e 10.0.0.5:7000@17000 slave b 0 0 2 connected
f 10.0.0.6:7000@17000 slave c 0 0 3 connected
g :0@0 handshake - 0 0 0 disconnected
";

/// Returns the facts about the nodes of a healthy cluster.
fn healthy_nodes() -> Vec<ServerFacts> {
    let place = ClusterView { is_ok: true, ..parse_cluster_nodes(CLUSTER_NODES_REPLY) };
    let info =
        [("redoubt_version", "0.1.0"), ("role", "master"), ("maxmemory", "1000"), ("used_memory", "10")];
    let info: Vec<_> = info.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let node = |peer: &ClusterPeer| ServerFacts {
        address: peer.address.clone(),
        info_fields: info.clone(),
        clock_ahead_ms: Some(0),
        cluster_view: Some(ClusterView { id: peer.id.clone(), ..place.clone() }),
        ..ServerFacts::default()
    };
    place.peers.iter().map(node).collect()
}

fn set_info_field(node: &mut ServerFacts, name: &str, value: &str) {
    node.info_fields.insert(0, (name.to_owned(), value.to_owned()));
}

fn change_all_views(nodes: &mut [ServerFacts], change: fn(&mut ClusterView)) {
    nodes.iter_mut().filter_map(|node| node.cluster_view.as_mut()).for_each(change);
}

/// Returns the severity and text of each finding that is not fine.
fn list_problems(nodes: &[ServerFacts]) -> Vec<(Severity, String)> {
    let findings = check_servers(nodes).into_iter().filter(|finding| finding.verdict != Severity::Fine);
    findings.map(|finding| (finding.verdict, format!("{}: {}", finding.about, finding.text))).collect()
}

#[test]
fn cluster_nodes_lines_are_parsed() {
    let place = parse_cluster_nodes(CLUSTER_NODES_REPLY);
    assert_eq!((place.id.as_str(), place.peers.len()), ("a", 6));
    assert_eq!(place.peers.iter().map(|peer| peer.slot_count).sum::<usize>(), SLOT_COUNT);
    assert_eq!(place.peers[1].address, "10.0.0.2:7000");
    assert_eq!((place.peers[1].bus_port, place.peers[3].master_id.as_deref()), (17000, Some("a")));
}

#[test]
fn healthy_cluster_passes_all_checks() {
    assert_eq!(list_problems(&healthy_nodes()), []);
    let last = check_servers(&healthy_nodes()).pop().unwrap();
    assert_eq!(last.text, "3 masters serve all slots, each with a replica");
}

type NodesChange = fn(&mut Vec<ServerFacts>);

#[test]
fn each_cluster_problem_is_reported_alone() {
    use Severity::{Fault, Warning};
    let table: &[(NodesChange, Severity, &str)] = &[
        (
            |all| all[1].connect_error = Some("refused".to_owned()),
            Fault,
            "10.0.0.2:7000: cannot connect: refused",
        ),
        (
            |all| all[1].bus_error = Some("refused".to_owned()),
            Fault,
            "10.0.0.2:7000: its cluster bus port is unreachable: refused",
        ),
        (
            |all| set_info_field(&mut all[3], "master_link_status", "down"),
            Fault,
            "10.0.0.4:7000: the link to its master is down",
        ),
        (
            |all| set_info_field(&mut all[0], "rdb_last_bgsave_status", "err"),
            Fault,
            "10.0.0.1:7000: the last snapshot failed",
        ),
        (
            |all| all[0].cluster_view.iter_mut().for_each(|place| place.peers[2].is_linked = false),
            Fault,
            "10.0.0.1:7000: no cluster bus link to 10.0.0.3:7000",
        ),
        (
            |all| set_info_field(&mut all[2], "redoubt_version", "0.2.0"),
            Warning,
            "versions: nodes run different versions: redoubt 0.1.0, redoubt 0.2.0",
        ),
        (
            |all| all[5].clock_ahead_ms = Some(-800),
            Warning,
            "clocks: 10.0.0.1:7000 is 800 ms ahead of 10.0.0.6:7000",
        ),
        (
            |all| {
                set_info_field(&mut all[0], "used_memory", "950");
                set_info_field(&mut all[0], "maxmemory_policy", "noeviction");
            },
            Warning,
            "10.0.0.1:7000: 950 bytes of maxmemory (1000 bytes) in use, and the policy is noeviction",
        ),
        (
            |all| change_all_views(all, |place| place.peers[3].master_id = Some("b".to_owned())),
            Warning,
            "cluster: 10.0.0.1:7000 has no replica: if it fails, its slots are unavailable",
        ),
        (
            |all| change_all_views(all, |view| view.peers[2].slot_count -= 1),
            Fault,
            "cluster: 1 slots are not served",
        ),
    ];
    for (change, severity, text) in table {
        assert_eq!(problems_after(*change), [(*severity, (*text).to_owned())]);
    }
}

/// Returns the problems that are found after a change to a healthy cluster.
fn problems_after(change: NodesChange) -> Vec<(Severity, String)> {
    let mut nodes = healthy_nodes();
    change(&mut nodes);
    list_problems(&nodes)
}

#[test]
fn failed_master_leaves_slots_unserved() {
    let mut nodes = healthy_nodes();
    change_all_views(&mut nodes, |place| {
        place.is_ok = false;
        (place.peers[0].has_failed, place.peers[0].is_linked) = (true, false);
    });
    nodes[0].connect_error = Some("refused".to_owned());
    let texts: Vec<_> = list_problems(&nodes).into_iter().map(|(_, text)| text).collect();
    assert!(texts.contains(&"cluster: 5461 slots are not served".to_owned()), "{texts:?}");
    assert!(texts.contains(&"cluster: 10.0.0.1:7000 has failed".to_owned()), "{texts:?}");
    assert!(texts.iter().all(|text| !text.contains("bus link")), "{texts:?}");
}

#[test]
fn standalone_server_has_one_finding() {
    let mut node = healthy_nodes().remove(0);
    node.cluster_view = None;
    let findings = check_servers(&[node]);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].text, "redoubt 0.1.0, master");
}
