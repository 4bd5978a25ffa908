//! Tests of `metrics-port`: metrics over HTTP, and the liveness and readiness of a node.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Cluster, Node, PortClaim, Program, claim_port, eventually};

/// The metrics port of a node, claimed before its start.
struct MetricsPort(PortClaim);

struct HttpResponse {
    status: u16,
    headers: String,
    body: String,
}

impl MetricsPort {
    /// Sends a GET request with additional header lines.
    fn try_get(&self, path: &str, header_lines: &str) -> std::io::Result<HttpResponse> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.0.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{header_lines}\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok(HttpResponse { status, headers: head.to_owned(), body: body.to_owned() })
    }

    fn get(&self, path: &str) -> HttpResponse {
        self.try_get(path, "").unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The value of the sample with this name and these labels.
    fn get_sample(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").body;
        let value = text.lines().filter_map(|line| line.rsplit_once(' ')).find(|(known, _)| *known == name);
        value.and_then(|(_, value)| value.parse().ok())
    }

    fn get_readiness(&self) -> (u16, String) {
        let answer = self.get("/readyz");
        (answer.status, answer.body.trim().replace('\n', " "))
    }
}

/// Prepares a node with a metrics port, without starting it.
fn prepare_node(options: &str) -> (Node, MetricsPort) {
    let web = MetricsPort(claim_port());
    let node = Node::prepare(&Program::redoubt(), &format!("--metrics-port {} {options}", web.0.port));
    (node, web)
}

fn start_node(options: &str) -> (Node, MetricsPort) {
    let (mut node, web) = prepare_node(options);
    node.launch();
    (node, web)
}

#[test]
fn metrics_match_info() {
    let (node, web) = start_node("--appendonly no");
    for key in ["a", "b", "c"] {
        node.run(&format!("SET {key} 1 EX 1000"));
    }
    node.run("GET a");
    node.run("GET missing");
    node.run("LPUSH a 1");
    let answer = web.get("/metrics");
    assert_eq!(answer.status, 200, "{}", answer.headers);
    assert!(answer.headers.contains("content-type: text/plain; version=0.0.4"), "{}", answer.headers);
    let table = [
        ("redis_up", 1.0),
        ("redis_db_keys{db=\"db0\"}", 3.0),
        ("redis_db_keys_expiring{db=\"db0\"}", 3.0),
        ("redis_commands_total{cmd=\"set\"}", 3.0),
        ("redis_commands_latencies_usec_count{cmd=\"set\"}", 3.0),
        ("redis_commands_failed_calls_total{cmd=\"lpush\"}", 1.0),
        ("redis_errors_total{err=\"WRONGTYPE\"}", 1.0),
        ("redis_keyspace_hits_total", 1.0),
        ("redis_keyspace_misses_total", 1.0),
        ("redis_cluster_enabled", 0.0),
        ("redis_config_maxclients", node.info("clients", "maxclients").unwrap().parse().unwrap()),
        ("redoubt_ready", 1.0),
    ];
    for (name, value) in table {
        assert_eq!(web.get_sample(name), Some(value), "{name} in\n{}", answer.body);
    }
    let left = web.get_sample("redis_db_avg_ttl_seconds{db=\"db0\"}").unwrap();
    assert!((900.0..=1000.0).contains(&left), "{left}");
    assert_eq!(web.get_readiness(), (200, "ready".to_owned()));
    assert_eq!(web.get("/healthz").status, 200);
    assert_eq!(web.get("/elsewhere").status, 404);
}

#[test]
fn metrics_require_password_but_readiness_does_not() {
    let (node, web) = start_node("--metrics-password secret");
    let refused = web.get("/metrics");
    assert_eq!(refused.status, 401);
    assert!(refused.headers.contains("www-authenticate: Basic"), "{}", refused.headers);
    assert_eq!(web.try_get("/metrics", "Authorization: Basic eDpzZWNyZXQ=\r\n").unwrap().status, 200);
    assert_eq!(web.get("/readyz").status, 200);
    node.run("CONFIG SET metrics-password other").expect_ok();
    assert_eq!(web.try_get("/metrics", "Authorization: Basic eDpzZWNyZXQ=\r\n").unwrap().status, 401);
    assert_eq!(web.try_get("/metrics", "Authorization: Bearer other\r\n").unwrap().status, 200);
}

#[test]
fn invalid_http_requests_are_refused_without_side_effects() {
    let (_node, web) = start_node("");
    assert_eq!(web.try_get("/metrics", "Host: evil.example\r\n").unwrap().status, 403, "a second name");
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", web.0.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert!(send(post.as_bytes()).contains(" 405 "));
    let named = "GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert!(send(named.as_bytes()).contains(" 403 "));
    let endless = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat();
    assert!(!send(&endless).contains(" 200 "));
    assert!(!send(b"*1\r\n$4\r\nPING\r\n").contains(" 200 "));
    assert_eq!(web.get("/metrics").status, 200);
}

#[test]
fn node_is_not_ready_while_loading() {
    let (mut node, web) = prepare_node("--save --enable-debug-command yes");
    node.launch();
    node.run("DEBUG POPULATE 50000");
    node.run("SAVE").expect_ok();
    node.kill();
    // The delay per key makes loading take some seconds.
    node.add_options("--key-load-delay 100");
    node.spawn();
    let loading = eventually("it loads", || {
        let answer = web.try_get("/readyz", "").ok()?;
        (answer.body.contains("loading")).then_some(answer)
    });
    assert_eq!(loading.status, 503);
    assert_eq!(web.get("/healthz").status, 200, "it is well meanwhile");
    assert_eq!(web.get_sample("redis_loading_dump_file"), Some(1.0));
    assert_eq!(web.get_sample("redoubt_not_ready{reason=\"loading\"}"), Some(1.0));
    node.run("CONFIG SET key-load-delay 0").expect_ok();
    eventually("it has loaded", || (web.get_readiness().0 == 200).then_some(()));
    assert_eq!(web.get_sample("redis_db_keys{db=\"db0\"}"), Some(50000.0));
}

#[test]
fn replica_is_ready_while_in_sync_with_reachable_master() {
    let mut master = Node::start(&Program::redoubt(), "");
    master.run("SET a 1");
    let (replica, web) = start_node(&format!("--replicaof 127.0.0.1 {}", master.endpoint().port));
    eventually("it is in sync", || (web.get_readiness().0 == 200).then_some(()));
    assert_eq!(web.get_sample("redis_db_keys{db=\"db0\"}"), Some(1.0));
    let link = format!(
        "redis_master_link_up{{master_host=\"127.0.0.1\",master_port=\"{}\"}}",
        master.endpoint().port
    );
    assert_eq!(web.get_sample(&link), Some(1.0));
    master.kill();
    eventually("its master is missed", || {
        (web.get_readiness() == (503, "not_in_sync".to_owned())).then_some(())
    });
    assert_eq!(web.get_sample(&link), Some(0.0));
    replica.run("REPLICAOF NO ONE").expect_ok();
    eventually("it is a master", || (web.get_readiness().0 == 200).then_some(()));
}

#[test]
fn node_is_ready_while_cluster_serves_all_slots() {
    let mut webs = Vec::new();
    let nodes = (0..3)
        .map(|_| {
            let (node, web) = start_node("--cluster-enabled yes --cluster-node-timeout 2000");
            webs.push(web);
            node
        })
        .collect();
    assert_eq!(webs[0].get_readiness(), (503, "cluster_down".to_owned()), "it has no slots yet");
    let mut cluster = Cluster::join_nodes(nodes, 3);
    cluster.wait_until_ok();
    for web in &webs {
        eventually("all serve", || (web.get_readiness().0 == 200).then_some(()));
    }
    let served: f64 = webs.iter().map(|web| web.get_sample("redoubt_slots_served").unwrap()).sum();
    assert_eq!(served, 16384.0);
    assert_eq!(webs[0].get_sample("redis_cluster_state"), Some(1.0));
    cluster.nodes[2].kill();
    for web in &webs[..2] {
        eventually("slots are not served", || {
            (web.get_readiness() == (503, "cluster_down".to_owned())).then_some(())
        });
    }
    assert_eq!(webs[0].get_sample("redis_cluster_state"), Some(0.0));
    assert_eq!(webs[0].get_sample("redoubt_failures_remembered"), Some(1.0));
}

/// The lag of a replica is the difference of two offsets: those that other nodes announce, and the node's own, which
/// the node itself must add to the metrics.
#[test]
fn metrics_include_own_offset_and_offsets_of_other_nodes() {
    let (master, web) = start_node("--cluster-enabled yes --cluster-node-timeout 2000");
    let cluster = Cluster::join_nodes(vec![master, Node::start_clustered(&Program::redoubt())], 1);
    cluster.make_replica(1, 0);
    cluster.wait_until_synchronised();
    cluster.nodes[0].run("SET key value").expect_ok();
    eventually("both are shown at the same offset", || {
        let state = get_json(&web, "/api/state");
        let offsets: Vec<u64> =
            state["nodes"].as_array()?.iter().filter_map(|node| node["offset"].as_u64()).collect();
        (offsets.len() == 2 && offsets[0] > 0 && offsets[0] == offsets[1]).then_some(())
    });
}

/// A script locks the slot of a key, and a scrape waits for that slot because it counts the keys of the database.
#[test]
fn health_check_replies_while_scrape_waits_for_script() {
    let (node, web) = start_node("--busy-reply-threshold 100");
    let mut client = node.connect();
    client.call_line("SELECT 1").expect_ok();
    client.call_line("SET k v").expect_ok();
    let script = "while true do redis.call('GET', KEYS[1]) end";
    client.send(&["EVAL", script, "1", "k"]).unwrap();
    eventually("the script is busy", || node.run("PING").is_error("BUSY").then_some(()));
    let mut scrape = TcpStream::connect(("127.0.0.1", web.0.port)).unwrap();
    scrape.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!((web.get("/healthz").status, web.get_readiness().0), (200, 200));
    node.run("SCRIPT KILL").expect_ok();
    let mut text = String::new();
    scrape.read_to_string(&mut text).unwrap();
    assert!(text.contains("redis_db_keys{db=\"db1\"} 1"), "{text}");
}

fn get_json(metrics_port: &MetricsPort, path: &str) -> serde_json::Value {
    let answer = metrics_port.get(path);
    assert!(answer.headers.contains("content-type: application/json"), "{path}: {}", answer.headers);
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}: {}", answer.body))
}

#[test]
fn status_json_contains_slots_and_key_types() {
    let (node, web) = start_node("");
    for number in 0..10 {
        node.run(&format!("SET user:{number}:name {}", "x".repeat(1000))).expect_ok();
    }
    node.run("SADD colours red green");
    for (path, least) in [("/api/slots", 1), ("/api/slots?by=bytes", 1000)] {
        let slots = get_json(&web, path);
        assert_eq!(slots["owners"], serde_json::json!([[0, 16383, ""]]));
        let figures = slots["figures"].as_array().unwrap();
        let used: Vec<u64> =
            figures.iter().filter_map(|figure| figure.as_u64()).filter(|figure| *figure > 0).collect();
        assert_eq!((figures.len(), used.len()), (16384, 11), "{path}");
        assert!(used.iter().max() >= Some(&least), "{path}: {used:?}");
    }
    let walk = get_json(&web, "/api/keys");
    assert_eq!((&walk["keys"], &walk["sampled"]), (&11.into(), &11.into()), "{walk}");
    assert_eq!(
        (&walk["patterns"][0]["name"], &walk["patterns"][0]["keys"]),
        (&"user:*:name".into(), &10.0.into())
    );
    assert_eq!((&walk["types"][1]["name"], &walk["types"][1]["keys"]), (&"set".into(), &1.0.into()));
    let bytes = walk["types"][0]["bytes"].as_f64().unwrap();
    assert!((10_000.0..13_000.0).contains(&bytes), "{bytes} for ten thousand bytes of values");
}

#[test]
fn hot_keys_are_reported_without_ending_monitors() {
    let (node, web) = start_node("");
    let mut monitor = node.connect();
    monitor.call_line("MONITOR").expect_ok();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = node.connect();
            while !stop.load(Ordering::Relaxed) {
                client.call_line("GET hot");
            }
        });
        let seen = || {
            let load = get_json(&web, "/api/load");
            (load["keys"][0]["key"] == "hot").then(|| load["slots"][0][0].as_u64())
        };
        let slot = eventually("the hot key is reported", seen);
        assert_eq!(slot, Some(u64::from(harness::slot_of("hot"))));
        stop.store(true, Ordering::Relaxed);
    });
    node.run("SET last 1").expect_ok();
    eventually("the monitor receives commands after the sample", || {
        monitor.read().unwrap().text().contains("\"last\"").then_some(())
    });
}

/// Returns the names of metrics in a text with Prometheus queries.
fn metric_names(text: &str) -> std::collections::BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("redis_") || word.starts_with("redoubt_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn grafana_dashboard_and_alerts_use_existing_metrics() {
    let (replica, replica_web) = prepare_node("--cluster-enabled yes");
    let (mut nodes, mut webs) = (Vec::new(), vec![replica_web]);
    for _ in 0..3 {
        let (node, web) = start_node("--cluster-enabled yes --appendonly yes");
        nodes.push(node);
        webs.push(web);
    }
    let mut replica = replica;
    replica.launch();
    nodes.push(replica);
    let cluster = Cluster::join_nodes(nodes, 3);
    cluster.make_replica(3, 0);
    cluster.wait_until_ok();
    cluster.wait_until_synchronised();
    for node in cluster.running_nodes() {
        node.run("SET a 1");
        node.run("PING");
    }
    // The error metrics appear only after an error, so a SET that each node redirects with MOVED comes first.
    let mut there = std::collections::BTreeSet::new();
    for web in &webs {
        let text = web.get("/metrics").body;
        there.extend(
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.split(['{', ' ']).next().map(str::to_owned)),
        );
    }
    // This metric is only present on a replica whose data differs from its master's.
    let seldom = ["redoubt_replica_unapplied_changes"];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops");
    let mut named = 0;
    for file in ["grafana/redoubt.json", "prometheus/alerts.yml"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        for figure in metric_names(&text) {
            named += 1;
            let known = there.contains(&figure) || seldom.contains(&figure.as_str());
            assert!(known, "{file} uses {figure}, which no node exports");
        }
    }
    assert!(named > 40, "{named} metrics are used");
    let dashboard = std::fs::read_to_string(folder.join("grafana/redoubt.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
}
