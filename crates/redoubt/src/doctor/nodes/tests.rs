use super::super::finding::Verdict;
use super::ask::read_place;
use super::*;

const LINES: &str = "\
a 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460
b 10.0.0.2:7000@17000,name master - 0 0 2 connected 5461-10922 [5461->-a]
c 10.0.0.3:7000@17000 master - 0 0 3 connected 10923-16382 16383
d 10.0.0.4:7000@17000 slave a 0 0 1 connected
e 10.0.0.5:7000@17000 slave b 0 0 2 connected
f 10.0.0.6:7000@17000 slave c 0 0 3 connected
g :0@0 handshake - 0 0 0 disconnected
";

/// The nodes of a healthy cluster.
fn good() -> Vec<Node> {
    let place = Place { is_ok: true, ..read_place(LINES) };
    let info =
        [("redoubt_version", "0.1.0"), ("role", "master"), ("maxmemory", "1000"), ("used_memory", "10")];
    let info: Vec<_> = info.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let node = |peer: &Peer| Node {
        address: peer.address.clone(),
        info: info.clone(),
        clock_ahead: Some(0),
        place: Some(Place { id: peer.id.clone(), ..place.clone() }),
        ..Node::default()
    };
    place.peers.iter().map(node).collect()
}

fn set(node: &mut Node, name: &str, value: &str) {
    node.info.insert(0, (name.to_owned(), value.to_owned()));
}

fn in_all(nodes: &mut [Node], change: fn(&mut Place)) {
    nodes.iter_mut().filter_map(|node| node.place.as_mut()).for_each(change);
}

/// Severity and text of the findings that are not fine.
fn found(nodes: &[Node]) -> Vec<(Verdict, String)> {
    let findings = check(nodes).into_iter().filter(|finding| finding.verdict != Verdict::Fine);
    findings.map(|finding| (finding.verdict, format!("{}: {}", finding.about, finding.text))).collect()
}

#[test]
fn cluster_nodes_lines_are_parsed() {
    let place = read_place(LINES);
    assert_eq!((place.id.as_str(), place.peers.len()), ("a", 6));
    assert_eq!(place.peers.iter().map(|peer| peer.slots).sum::<usize>(), SLOTS);
    assert_eq!(place.peers[1].address, "10.0.0.2:7000");
    assert_eq!((place.peers[1].bus_port, place.peers[3].master.as_deref()), (17000, Some("a")));
}

#[test]
fn healthy_cluster_passes_all_checks() {
    assert_eq!(found(&good()), []);
    let last = check(&good()).pop().unwrap();
    assert_eq!(last.text, "3 masters serve all slots, each with a replica");
}

#[test]
fn each_cluster_problem_is_reported_alone() {
    use Verdict::{Fault, Warning};
    type Change = fn(&mut Vec<Node>);
    let table: &[(Change, Verdict, &str)] = &[
        (|all| all[1].refusal = Some("refused".to_owned()), Fault, "10.0.0.2:7000: cannot connect: refused"),
        (
            |all| all[1].bus_refusal = Some("refused".to_owned()),
            Fault,
            "10.0.0.2:7000: its cluster bus port is unreachable: refused",
        ),
        (
            |all| set(&mut all[3], "master_link_status", "down"),
            Fault,
            "10.0.0.4:7000: the link to its master is down",
        ),
        (
            |all| set(&mut all[0], "rdb_last_bgsave_status", "err"),
            Fault,
            "10.0.0.1:7000: the last snapshot failed",
        ),
        (
            |all| all[0].place.iter_mut().for_each(|place| place.peers[2].is_linked = false),
            Fault,
            "10.0.0.1:7000: no cluster bus link to 10.0.0.3:7000",
        ),
        (
            |all| set(&mut all[2], "redoubt_version", "0.2.0"),
            Warning,
            "versions: nodes run different versions: redoubt 0.1.0, redoubt 0.2.0",
        ),
        (
            |all| all[5].clock_ahead = Some(-800),
            Warning,
            "clocks: 10.0.0.1:7000 is 800 ms ahead of 10.0.0.6:7000",
        ),
        (
            |all| {
                set(&mut all[0], "used_memory", "950");
                set(&mut all[0], "maxmemory_policy", "noeviction");
            },
            Warning,
            "10.0.0.1:7000: 950 bytes of maxmemory (1000 bytes) in use, and the policy is noeviction",
        ),
        (
            |all| in_all(all, |place| place.peers[3].master = Some("b".to_owned())),
            Warning,
            "cluster: 10.0.0.1:7000 has no replica: if it fails, its slots are unavailable",
        ),
        (|all| in_all(all, |place| place.peers[2].slots -= 1), Fault, "cluster: 1 slots are not served"),
    ];
    for (change, verdict, text) in table {
        let mut nodes = good();
        change(&mut nodes);
        assert_eq!(found(&nodes), [(*verdict, (*text).to_owned())]);
    }
}

#[test]
fn failed_master_leaves_slots_unserved() {
    let mut nodes = good();
    in_all(&mut nodes, |place| {
        place.is_ok = false;
        (place.peers[0].has_failed, place.peers[0].is_linked) = (true, false);
    });
    nodes[0].refusal = Some("refused".to_owned());
    let texts: Vec<_> = found(&nodes).into_iter().map(|(_, text)| text).collect();
    assert!(texts.contains(&"cluster: 5461 slots are not served".to_owned()), "{texts:?}");
    assert!(texts.contains(&"cluster: 10.0.0.1:7000 has failed".to_owned()), "{texts:?}");
    assert!(texts.iter().all(|text| !text.contains("bus link")), "{texts:?}");
}

#[test]
fn standalone_server_has_one_finding() {
    let mut node = good().remove(0);
    node.place = None;
    let findings = check(&[node]);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].text, "redoubt 0.1.0, master");
}
