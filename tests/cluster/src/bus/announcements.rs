//! Compares with Valkey how a node announces its addresses and names: client ports, the IP address per address family,
//! the availability zone and hostnames. Announcements travel over the bus, are saved in `nodes.conf` and can be removed
//! again. The tests use Redoubt clusters, Valkey clusters and mixed clusters.

use harness::{Cluster, Connection, Node, Program, Reply, eventually};

const SERVER_OPTIONS: &str = "--save  --cluster-enabled yes --cluster-node-timeout 2000";

/// Each announcing parameter, a value for it, and the text by which `nodes.conf` and CLUSTER NODES show it.
const ANNOUNCED_ADDRESSES: [(&str, &str, &str); 7] = [
    ("cluster-announce-client-ipv4", "10.1.2.3", "client-ipv4=10.1.2.3"),
    ("cluster-announce-client-ipv6", "2001:db8::1", "client-ipv6=2001:db8::1"),
    ("cluster-announce-client-port", "7777", "client-tcp-port=7777"),
    ("cluster-announce-client-tls-port", "7778", "client-tls-port=7778"),
    ("availability-zone", "eu-1a", "availability-zone=eu-1a"),
    ("cluster-announce-hostname", "one.example", ",one.example,"),
    ("cluster-announce-human-nodename", "the-first", "nodename=the-first"),
];

fn set_parameter(node: &Node, parameter: &str, value: &str) {
    node.connect().call(&["CONFIG", "SET", parameter, value]).expect_ok();
}

/// The value that removes an announcement.
fn value_after_removal(parameter: &str) -> &'static str {
    if parameter.ends_with("port") { "0" } else { "" }
}

/// The line of node `id` in the `nodes.conf` of `node`.
fn nodes_conf_line(node: &Node, id: &str) -> String {
    let text = std::fs::read_to_string(node.folder().join("nodes.conf")).unwrap_or_default();
    text.lines().find(|line| line.starts_with(id)).unwrap_or_default().to_owned()
}

/// Waits until `words` is present in (or absent from) the saved line of `id`.
fn wait_for_nodes_conf_line(node: &Node, id: &str, text: &str, is_present: bool) {
    eventually(&format!("{} has {text:?} of {id} in its file: {is_present}", node.port), || {
        let line = nodes_conf_line(node, id);
        (!line.is_empty() && line.contains(text) == is_present).then_some(())
    });
}

/// Starts two masters with half of the slots each, and a replica of the first. The first master announces.
fn start_cluster(programs: [&Program; 3]) -> Cluster {
    let started = programs.map(|kind| {
        let mut node = Node::prepare(kind, SERVER_OPTIONS);
        node.add_options("--bind 127.0.0.1 -::1");
        node.launch();
        node
    });
    Cluster::join_nodes(started.into(), 2)
}

/// Everything that clients see of the first node, with placeholders for ids and ports, which differ between runs.
fn read_client_view(cluster: &Cluster, queried_node: usize, host: &str) -> Vec<String> {
    let mut client =
        Connection::open((host, cluster.nodes[queried_node].port)).expect("it listens on both families");
    let ids = [0, 1, 2].map(|node| cluster.node_id(node));
    let plain = |text: String| {
        let mut text = text;
        for (number, node) in cluster.nodes.iter().enumerate() {
            text = text.replace(&node.port.to_string(), &format!("PORT{number}"));
            text = text.replace(&(node.port + 10_000).to_string(), &format!("BUS{number}"));
            text = text.replace(&ids[number], &format!("NODE{number}"));
        }
        text
    };
    let mut lines = Vec::new();
    let nodes = client.call_line("CLUSTER NODES").text();
    let line = nodes.lines().find(|line| line.starts_with(&ids[0])).expect("it is known");
    lines.push(format!("NODES {}", plain(line.split(' ').nth(1).expect("an address").to_owned())));
    for kind in ["ip", "hostname", "unknown-endpoint"] {
        set_parameter(&cluster.nodes[queried_node], "cluster-preferred-endpoint-type", kind);
        let slots = client.call_line("CLUSTER SLOTS");
        let run = slots.items().iter().find(|run| run.items()[2].items()[2].text() == ids[0]);
        lines.push(format!("{kind}: SLOTS {}", plain(flatten_reply(&run.expect("it has slots").items()[2]))));
        let shards = client.call_line("CLUSTER SHARDS");
        let shard = shards.items().iter().find(|shard| flatten_reply(&shard.items()[3]).contains(&ids[0]));
        let shard = shard.expect("it has a shard").items();
        let node =
            shard[3].items().iter().find(|node| flatten_reply(node).contains(&ids[0])).expect("it is in it");
        // Replication offsets differ between runs.
        let fields: Vec<String> = node
            .items()
            .chunks(2)
            .map(|pair| pair.iter().map(flatten_reply).collect::<Vec<_>>().join("="))
            .collect();
        let fields: Vec<&String> =
            fields.iter().filter(|field| !field.starts_with("replication-offset")).collect();
        lines.push(format!("{kind}: SHARDS {}", plain(format!("{fields:?}"))));
        assert_eq!(shard[4].text(), "id");
        assert_eq!(shard[5], cluster.nodes[0].run("CLUSTER MYSHARDID"));
        if queried_node != 0 {
            // The slot of this key belongs to the first node, so the other nodes redirect the client to it.
            lines.push(format!("{kind}: GET {}", plain(flatten_reply(&client.call(&["GET", "bar"])))));
        }
    }
    set_parameter(&cluster.nodes[queried_node], "cluster-preferred-endpoint-type", "ip");
    lines
}

fn flatten_reply(value: &Reply) -> String {
    match value {
        Reply::Array(items) => format!("[{}]", items.iter().map(flatten_reply).collect::<Vec<_>>().join(" ")),
        Reply::Int(number) => number.to_string(),
        Reply::Error(text) => text.clone(),
        Reply::NullBulk | Reply::Null => "nil".to_owned(),
        other => other.text(),
    }
}

/// Sets every announcement, queries all nodes over IPv4 and IPv6, and removes the announcements one by one.
fn run_all_announcements(programs: [&Program; 3]) -> Vec<String> {
    let cluster = start_cluster(programs);
    let id = cluster.node_id(0);
    for (parameter, value, words) in ANNOUNCED_ADDRESSES {
        set_parameter(&cluster.nodes[0], parameter, value);
        for node in &cluster.nodes {
            wait_for_nodes_conf_line(node, &id, words, true);
        }
    }
    let mut lines = Vec::new();
    for asked in 0..3 {
        for host in ["127.0.0.1", "::1"] {
            lines.extend(
                read_client_view(&cluster, asked, host)
                    .into_iter()
                    .map(|line| format!("{asked} {host} {line}")),
            );
        }
    }
    for (parameter, _, words) in ANNOUNCED_ADDRESSES {
        set_parameter(&cluster.nodes[0], parameter, value_after_removal(parameter));
        for node in &cluster.nodes {
            wait_for_nodes_conf_line(node, &id, words, false);
        }
        lines.extend(
            read_client_view(&cluster, 1, "127.0.0.1")
                .into_iter()
                .map(|line| format!("no {parameter} {line}")),
        );
    }
    lines
}

#[test]
fn clients_see_same_announcements_as_in_valkey_cluster() {
    let ours = Program::redoubt();
    let Some(valkey) = Program::valkey() else { return };
    let wanted = run_all_announcements([&valkey; 3]);
    for words in [
        "10.1.2.3:7777@BUS0,one.example",
        "2001:db8::1",
        "availability-zone eu-1a]",
        "MOVED 5061 one.example:7777",
    ] {
        assert!(wanted.iter().any(|line| line.contains(words)), "not even Valkey says {words}: {wanted:#?}");
    }
    assert_eq!(run_all_announcements([&ours; 3]), wanted);
    // The announcing node is Redoubt and the others are Valkey; the reverse is tested afterwards.
    assert_eq!(run_all_announcements([&ours, &valkey, &valkey]), wanted);
    assert_eq!(run_all_announcements([&valkey, &ours, &ours]), wanted);
}

/// A restarted node knows the announcements of other nodes before it receives a message. Redoubt and Valkey read each
/// other's `nodes.conf`.
#[test]
fn announcements_survive_restart_as_redoubt_or_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let ours = Program::redoubt();
    for (first, second) in [(&ours, &ours), (&ours, &valkey), (&valkey, &ours)] {
        let mut cluster = start_cluster([first; 3]);
        let id = cluster.node_id(0);
        for (parameter, value, _) in ANNOUNCED_ADDRESSES {
            set_parameter(&cluster.nodes[0], parameter, value);
        }
        for (_, _, words) in ANNOUNCED_ADDRESSES {
            wait_for_nodes_conf_line(&cluster.nodes[1], &id, words, true);
        }
        let port = cluster.nodes[0].port;
        let told = |node: &Node| {
            let nodes = node.run("CLUSTER NODES").text();
            let line = nodes.lines().find(|line| line.starts_with(&id)).expect("it is known").to_owned();
            line.split(' ').nth(1).expect("an address").to_owned()
        };
        cluster.nodes[0].kill();
        cluster.nodes[1].terminate();
        let mut heir = Node::start(second, "");
        heir.kill();
        let bus = cluster.nodes[1].port + 10_000;
        let folder = heir.folder().to_owned();
        std::fs::copy(cluster.nodes[1].folder().join("nodes.conf"), folder.join("nodes.conf"))
            .expect("a copy");
        heir.add_options(&format!(
            "{SERVER_OPTIONS} --cluster-announce-port {} --cluster-announce-bus-port {bus}",
            cluster.nodes[1].port
        ));
        heir.launch();
        assert_eq!(told(&heir), format!("10.1.2.3:7777@{},one.example", port + 10_000), "{}", second.name());
        heir.run("CLUSTER SAVECONFIG").expect_ok();
        for (_, _, words) in ANNOUNCED_ADDRESSES {
            assert!(nodes_conf_line(&heir, &id).contains(words), "{words}: {}", nodes_conf_line(&heir, &id));
        }
    }
}

/// The announced client port is only for clients: bus links, replication and slot migration use the real address.
#[test]
fn announced_client_port_is_not_used_between_nodes() {
    let cluster = start_cluster([&Program::redoubt(); 3]);
    for node in &cluster.nodes {
        set_parameter(node, "cluster-announce-client-ipv4", "192.0.2.1");
        set_parameter(node, "cluster-announce-client-port", "1");
    }
    let address = |node: &Node| node.run("CLUSTER NODES").text().matches(" 192.0.2.1:1@").count();
    for node in &cluster.nodes {
        eventually("all are announced elsewhere", || (address(node) == 3).then_some(()));
    }
    let mut replica = cluster.nodes[2].connect();
    cluster.nodes[0].run("CLIENT KILL TYPE replica");
    cluster.nodes[0].run("SET bar value").expect_ok();
    eventually("the replica continues", || {
        replica.call_line("READONLY").expect_ok();
        (replica.call_line("GET bar") == Reply::Bulk(b"value".to_vec())).then_some(())
    });
    assert_eq!(cluster.nodes[2].info("replication", "master_port"), Some(cluster.nodes[0].port.to_string()));
    let target = cluster.node_id(1);
    cluster.nodes[0].run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5061 5061 NODE {target}")).expect_ok();
    eventually("the slot has moved with its key", || {
        (cluster.nodes[1].run("GET bar") == Reply::Bulk(b"value".to_vec())).then_some(())
    });
}
