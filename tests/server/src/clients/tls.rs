//! TLS on real servers: clients, replicas, nodes of a cluster and sentinels, and clients that are not let in.

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{Node, PortClaim, Program, Value, claim_port, eventually, permitted, redis_cli, run_to_end};
use tempfile::TempDir;

/// Certificates of an authority of the test's own.
struct Authority {
    folder: TempDir,
    /// Ports that its servers have.
    claims: RefCell<Vec<PortClaim>>,
}

impl Authority {
    fn new(client: &str) -> Self {
        Self::with_uris(client, &[])
    }

    /// The client's certificate has these URIs among its alternative names.
    fn with_uris(client: &str, uris: &[&str]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-certificates");
        let (status, printed) = run_to_end(Command::new(script).arg(folder.path()).arg(client).args(uris));
        assert!(status.success(), "{printed}");
        Self { folder, claims: RefCell::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs openssl in the folder of the certificates.
    fn openssl(&self, arguments: &str) {
        let mut openssl = Command::new("openssl");
        let (status, printed) =
            run_to_end(openssl.args(arguments.split(' ')).current_dir(self.folder.path()));
        assert!(status.success(), "openssl {arguments}: {printed}");
    }

    /// The options that make a server use its certificates.
    fn options(&self) -> String {
        let path = |name| self.path(name).display().to_string();
        format!(
            "--save  --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file {}",
            path("server.crt"),
            path("server.key"),
            path("ca.crt")
        )
    }

    /// A server that speaks TLS on a port of its own, and that port.
    fn start_program(&self, program: &Program, options: &str) -> (Node, u16) {
        let claim = claim_port();
        let port = claim.port;
        self.claims.borrow_mut().push(claim);
        let options = format!("{} --tls-port {port} {options}", self.options());
        (Node::start(program, &options), port)
    }

    fn start(&self, options: &str) -> (Node, u16) {
        self.start_program(&Program::redoubt(), options)
    }

    /// Says something over TLS as the client of that name, or without a certificate.
    fn say(&self, port: u16, certificate: Option<&str>, words: &[&str]) -> Result<String, String> {
        let port = port.to_string();
        let path = |name: &str| self.path(name).display().to_string();
        let mut arguments =
            vec!["-p".to_owned(), port, "--tls".to_owned(), "--cacert".to_owned(), path("ca.crt")];
        if let Some(name) = certificate {
            let (certificate, key) = (path(&format!("{name}.crt")), path(&format!("{name}.key")));
            arguments.extend(["--cert".to_owned(), certificate, "--key".to_owned(), key]);
        }
        arguments.extend(words.iter().map(|word| (*word).to_owned()));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        redis_cli(&arguments).map(|printed| printed.trim().to_owned())
    }

    fn ask(&self, port: u16, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        self.say(port, Some("client"), &words).unwrap_or_else(|error| panic!("{line}: {error}"))
    }
}

/// A `redis-cli` that is spoken to and heard through pipes.
fn piped_cli(arguments: &[&str]) -> Child {
    let mut cli = Command::new("redis-cli");
    cli.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    cli.spawn().expect("redis-cli is installed (scripts/install-test-tools)")
}

#[test]
fn clients_speak_tls_and_need_a_certificate() {
    let authority = Authority::new("client");
    let (node, port) = authority.start("");
    assert_eq!(authority.ask(port, "SET k v"), "OK");
    assert_eq!(authority.ask(port, "GET k"), "v");
    // A value of many records.
    let long = "x".repeat(100_000);
    assert_eq!(authority.ask(port, &format!("SET long {long}")), "OK");
    assert_eq!(authority.ask(port, "GET long"), long);
    assert_eq!(authority.ask(port, "STRLEN long"), "100000");
    assert_eq!(node.run("GET k").text(), "v");
    let answered = |printed: Result<String, String>| printed.is_ok_and(|text| text == "PONG");
    assert!(!answered(authority.say(port, None, &["PING"])), "nobody in particular");
    let other = Authority::new("client");
    assert!(!answered(other.say(port, Some("client"), &["PING"])), "somebody else's client");
    node.run("CONFIG SET tls-auth-clients optional").expect_ok();
    assert!(answered(authority.say(port, None, &["PING"])));
    assert!(
        !answered(other.say(port, Some("client"), &["PING"])),
        "a certificate that is shown is looked at"
    );
    node.run("CONFIG SET tls-auth-clients no").expect_ok();
    assert!(answered(authority.say(port, None, &["PING"])));
    let server = node.run("INFO server").text();
    assert!(server.contains(&format!("name=tls,bind=127.0.0.1,port={port}")), "{server}");
    assert!(server.contains("tls_server_cert_serial:") && server.contains("tls_ca_cert_expires_in_seconds:"));
    // The socket of TLS takes nothing else.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    plain.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
    plain.write_all(b"PING\r\n").expect("it is sent");
    let mut answer = Vec::new();
    // Closed or reset, it ends.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"+PONG"), "{answer:?}");
}

/// A pipeline that fills every buffer on its way, read only then.
#[test]
fn nothing_is_lost_where_more_is_sent_than_the_socket_takes() {
    const LEN: usize = 300_000;
    const READS: usize = 200;
    let authority = Authority::new("client");
    let (_node, port) = authority.start("--tls-auth-clients no");
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-connect", &address]).stderr(Stdio::null());
    let mut client =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("openssl is installed");
    let mut input = client.stdin.take().expect("it is piped");
    write!(input, "SETRANGE k {} y\r\n{}QUIT\r\n", LEN - 1, "GET k\r\n".repeat(READS)).expect("it reads");
    eventually("the server has more to say than the socket takes", || {
        let clients = authority.ask(port, "CLIENT LIST");
        clients.lines().any(|line| !line.contains(" omem=0 ")).then_some(())
    });
    let mut answer = Vec::new();
    client.stdout.take().expect("it is piped").read_to_end(&mut answer).expect("it answers");
    client.wait().expect("it ends");
    let value = [&vec![0; LEN - 1][..], b"y"].concat();
    let read = [format!("${LEN}\r\n").as_bytes(), &value, b"\r\n"].concat();
    let expected = [format!(":{LEN}\r\n").as_bytes(), &read.repeat(READS), b"+OK\r\n"].concat();
    assert!(answer == expected, "{} bytes of {}", answer.len(), expected.len());
}

#[test]
fn certificates_are_replaced_while_clients_stay() {
    let authority = Authority::new("client");
    let (node, port) = authority.start("--tls-auth-clients no");
    let path = |name: &str| authority.path(name).display().to_string();
    let mut cli = piped_cli(&["-p", &port.to_string(), "--tls", "--cacert", &path("ca.crt")]);
    let (mut input, mut output) = (cli.stdin.take().expect("piped"), cli.stdout.take().expect("piped"));
    let mut ask = |line: &str| {
        writeln!(input, "{line}").expect("it reads");
        let mut bytes = [0; 64];
        let len = output.read(&mut bytes).expect("it answers");
        String::from_utf8_lossy(&bytes[..len]).trim().to_owned()
    };
    assert_eq!(ask("PING"), "PONG");
    node.run(&format!("CONFIG SET tls-cert-file {}", path("expired.crt"))).expect_ok();
    let refused = authority.say(port, None, &["PING"]);
    assert!(refused.as_deref() != Ok("PONG"), "its certificate has expired: {refused:?}");
    assert_eq!(ask("PING"), "PONG", "who is there stays");
    // A certificate that cannot be used changes nothing.
    let wrong = node.run(&format!("CONFIG SET tls-cert-file {}", path("client.crt")));
    assert!(format!("{wrong:?}").contains("Unable to update TLS configuration"), "{wrong:?}");
    assert_eq!(node.run("CONFIG GET tls-cert-file").items()[1].text(), path("expired.crt"));
    node.run(&format!("CONFIG SET tls-cert-file {}", path("server.crt"))).expect_ok();
    assert_eq!(authority.say(port, None, &["PING"]).as_deref(), Ok("PONG"));
    assert_eq!(ask("PING"), "PONG");
    for (name, value, reason) in [
        ("tls-protocols", "SSLv3", "Invalid tls-protocols"),
        ("tls-ciphers", "NULL-MD5", "there is no 'NULL-MD5'"),
        ("tls-ca-cert-file", "/nosuch", "/nosuch"),
    ] {
        assert!(node.run(&format!("CONFIG SET {name} {value}")).is_error("ERR"));
        assert!(node.log().contains(reason), "{name} {value}");
    }
    node.run("CONFIG SET tls-protocols TLSv1.2").expect_ok();
    assert_eq!(authority.say(port, None, &["PING"]).as_deref(), Ok("PONG"));
    drop(input);
    cli.wait().expect("it ends");
}

/// `appenddirname` is a file, so the last step of CONFIG SET fails.
#[test]
fn config_set_that_fails_leaves_certificates_and_listeners_as_they_were() {
    let authority = Authority::new("client");
    let (node, port) = authority.start("--tls-auth-clients no --appendonly no --appenddirname blocked");
    std::fs::write(node.folder().join("blocked"), "").expect("a file");
    let path = |name: &str| authority.path(name).display().to_string();
    let other = claim_port();
    let before = node.run("CONFIG GET *");
    for changed in [
        format!("tls-cert-file {}", path("expired.crt")),
        "tls-auth-clients yes".to_owned(),
        format!("tls-port {}", other.port),
        format!("tls-auth-clients yes tls-port {}", other.port),
    ] {
        let reply = node.run(&format!("CONFIG SET {changed} appendonly yes"));
        assert!(
            reply.is_error("ERR CONFIG SET failed (possibly related to argument 'appendonly')"),
            "{reply:?}"
        );
        assert_eq!(node.run("CONFIG GET *"), before, "{changed}");
        assert_eq!(authority.say(port, None, &["PING"]).as_deref(), Ok("PONG"), "{changed}");
        assert!(authority.say(other.port, None, &["PING"]).is_err(), "{changed}: nobody listens there");
    }
}

/// Files that are written anew are read by themselves, and what cannot be used changes nothing.
#[test]
fn certificates_are_read_again_by_themselves() {
    let authority = Authority::new("client");
    let (certificate, expired) = (authority.path("server.crt"), authority.path("expired.crt"));
    let (node, port) = authority.start("--tls-auth-clients no --tls-auto-reload-interval 1");
    let serial = || node.info("server", "tls_server_cert_serial");
    let (before, kept) = (serial(), fs::read(&certificate).expect("it is there"));
    assert_eq!(authority.say(port, None, &["PING"]).as_deref(), Ok("PONG"));
    fs::copy(expired, &certificate).expect("the folder can be written to");
    eventually("the other is in use", || (serial() != before).then_some(()));
    assert!(authority.say(port, None, &["PING"]).as_deref() != Ok("PONG"), "it has expired");
    fs::write(&certificate, "no certificate").expect("the folder can be written to");
    eventually("the log says so", || node.log().contains("were changed and cannot be used").then_some(()));
    assert!(serial().is_some() && serial() != before);
    fs::write(&certificate, kept).expect("the folder can be written to");
    eventually("the first is back", || (serial() == before).then_some(()));
    assert_eq!(authority.say(port, None, &["PING"]).as_deref(), Ok("PONG"));
}

/// A key that cannot be read without its password.
#[test]
fn a_key_may_be_encrypted() {
    let authority = Authority::new("client");
    let (plain, encrypted) = (authority.path("server.key"), authority.path("locked.key"));
    let mut openssl = Command::new("openssl");
    openssl
        .args(["pkcs8", "-topk8", "-passout", "pass:secret", "-in"])
        .arg(plain)
        .arg("-out")
        .arg(&encrypted);
    assert!(run_to_end(&mut openssl).0.success());
    let (_node, port) =
        authority.start(&format!("--tls-key-file {} --tls-key-file-pass secret", encrypted.display()));
    assert_eq!(authority.ask(port, "PING"), "PONG");
    let mut node = Node::prepare(
        &Program::redoubt(),
        &format!("{} --tls-port {port} --tls-key-file {}", authority.options(), encrypted.display()),
    );
    node.spawn();
    assert!(!node.ended().success());
    assert!(node.log().contains("Failed to configure TLS"), "{}", node.log());
}

#[test]
fn a_certificate_may_say_who_its_client_is() {
    let authority = Authority::new("alice");
    let (node, port) = authority.start("--tls-auth-clients-user CN");
    assert_eq!(authority.ask(port, "ACL WHOAMI"), "default");
    assert_eq!(node.info("stats", "acl_access_denied_tls_cert").as_deref(), Some("1"));
    node.run("ACL SETUSER alice on +acl|whoami +get ~a").expect_ok();
    assert_eq!(authority.ask(port, "ACL WHOAMI"), "alice");
    assert!(authority.ask(port, "GET b").starts_with("NOPERM"));
    node.run("ACL SETUSER alice off").expect_ok();
    assert_eq!(authority.ask(port, "ACL WHOAMI"), "default");
}

/// The first URI that is the name of a user who may log in; if there is none, the last is noted. Where Valkey is here,
/// it does the same.
#[test]
fn a_certificate_may_name_its_user_by_a_uri() {
    let authority = Authority::with_uris("carol", &["urn:off", "urn:alice", "urn:bob"]);
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let (node, port) = authority.start_program(&program, "--tls-auth-clients-user URI");
        assert_eq!(authority.ask(port, "ACL WHOAMI"), "default");
        let denied = || node.info("stats", "acl_access_denied_tls_cert");
        assert_eq!(denied().as_deref(), Some("1"));
        assert!(format!("{:?}", node.run("ACL LOG")).contains("urn:bob"));
        node.run("ACL SETUSER urn:off off").expect_ok();
        node.run("ACL SETUSER urn:bob on +@all").expect_ok();
        node.run("ACL SETUSER carol on +@all").expect_ok();
        assert_eq!(authority.ask(port, "ACL WHOAMI"), "urn:bob");
        node.run("ACL SETUSER urn:alice on +acl|whoami").expect_ok();
        assert_eq!(authority.ask(port, "ACL WHOAMI"), "urn:alice");
        node.run("CONFIG SET tls-auth-clients-user CN").expect_ok();
        assert_eq!(authority.ask(port, "ACL WHOAMI"), "carol");
        assert_eq!(denied().as_deref(), Some("1"));
    }
}

#[test]
fn a_replica_follows_over_tls_and_a_stranger_does_not() {
    let authority = Authority::new("client");
    let (master, port) = authority.start("--tls-replication yes");
    master.run("SET k v").expect_ok();
    let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    eventually("the replica has the data", || {
        (replica.run("GET k") == Value::Bulk(b"v".to_vec())).then_some(())
    });
    for number in 0..2000 {
        master.run(&format!("SET key:{number} {}", "z".repeat(500)));
    }
    eventually("the replica has all of it", || (replica.run("DBSIZE") == Value::Int(2001)).then_some(()));
    assert_eq!(master.run("WAIT 1 10000").int(), 1);
    // One with certificates of another authority does not come in, nor does it believe the master.
    let other = Authority::new("client");
    let (stranger, _) = other.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    harness::never_within(Duration::from_secs(2), "a stranger has the data", || {
        stranger.info("replication", "master_link_status").as_deref() == Some("up")
    });
}

/// A snapshot and the stream beside it come over two connections, and both are of TLS.
#[test]
fn both_channels_of_a_synchronisation_are_of_tls() {
    let authority = Authority::new("client");
    let options = "--tls-replication yes --dual-channel-replication-enabled yes --repl-diskless-sync-delay 0";
    let (master, port) = authority.start(options);
    let script = "for i = 1, 2000 do redis.call('set', 'key:' .. i, 'value') end return redis.call('dbsize')";
    assert_eq!(master.connect().call(&["EVAL", script, "0"]), Value::Int(2000));
    master.run("CONFIG SET rdb-key-save-delay 1000").expect_ok();
    let (replica, _) = authority.start(&format!("{options} --replicaof 127.0.0.1 {port}"));
    eventually("the replica has two channels", || {
        let replicas = [master.info("replication", "slave0")?, master.info("replication", "slave1")?];
        let is_there = |kind: &&str| replicas.iter().any(|replica| replica.contains(*kind));
        ["type=rdb-channel", "type=main-channel"].iter().all(is_there).then_some(())
    });
    master.run("SET meanwhile yes").expect_ok();
    eventually("the replica has all", || {
        // Loading, it answers no questions about keys.
        let all = replica.run("DBSIZE") == Value::Int(2001);
        (all && replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    assert_eq!(master.run("WAIT 1 10000").int(), 1);
}

/// A client that begins a handshake and does not go on is disconnected in time, and keeps no other client out.
#[test]
fn half_a_handshake_ends_in_time() {
    let authority = Authority::new("client");
    let (node, port) = authority.start("--tls-auth-clients no");
    let mut half: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens")).collect();
    for stream in &mut half {
        // The first bytes of a greeting, and no more.
        stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).expect("it is sent");
    }
    assert_eq!(authority.say(port, None, &["PING"]).as_deref(), Ok("PONG"));
    eventually("all are closed", || {
        (node.info("clients", "connected_clients").as_deref() == Some("1")).then_some(())
    });
    let mut rest = Vec::new();
    half[0].set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
    assert_eq!(half[0].read_to_end(&mut rest).unwrap_or(0), 0);
}

/// A cluster whose nodes speak TLS with each other. Input without a certificate of its authority is ignored.
#[test]
fn a_cluster_speaks_tls_among_its_nodes() {
    let authority = Authority::new("client");
    let options = "--cluster-enabled yes --cluster-node-timeout 2000 --tls-cluster yes --tls-replication yes \
                   --tls-auth-clients no";
    let nodes: Vec<(Node, u16)> = (0..3).map(|_| authority.start(options)).collect();
    let ports: Vec<u16> = nodes.iter().map(|(_, port)| *port).collect();
    let (first, last) = (ports[0].to_string(), 16_383);
    for (index, (node, _)) in nodes.iter().enumerate().take(2) {
        let (from, to) = (index * 8192, (index * 8192 + 8191).min(last));
        node.run(&format!("CLUSTER ADDSLOTSRANGE {from} {to}")).expect_ok();
        node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).expect_ok();
    }
    for port in &ports[1..] {
        assert_eq!(authority.ask(*port, &format!("CLUSTER MEET 127.0.0.1 {first}")), "OK");
    }
    for (node, _) in &nodes {
        eventually("the cluster serves", || {
            let info = node.run("CLUSTER INFO").text();
            (info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")).then_some(())
        });
    }
    let master = nodes[0].0.run("CLUSTER MYID").text();
    nodes[2].0.run(&format!("CLUSTER REPLICATE {master}")).expect_ok();
    eventually("the replica follows", || {
        (nodes[2].0.info("replication", "master_link_status").as_deref() == Some("up")).then_some(())
    });
    assert_eq!(nodes[2].0.info("replication", "master_port"), Some(ports[0].to_string()));
    // A client is sent to where it can go as it came.
    let moved = authority.ask(ports[0], "GET foo");
    assert!(moved.contains(&format!("MOVED 12182 127.0.0.1:{}", ports[1])), "{moved}");
    let moved = format!("{:?}", nodes[0].0.run("GET foo"));
    assert!(moved.contains(&format!("127.0.0.1:{}", nodes[1].0.port)), "{moved}");
    let second = |port: u16| format!(" 127.0.0.1:{port}@{}", ports[1] + 10_000);
    let (plain, over_tls) =
        (nodes[0].0.run("CLUSTER NODES").text(), authority.ask(ports[0], "CLUSTER NODES"));
    assert!(plain.contains(&second(nodes[1].0.port)), "{plain}");
    assert!(over_tls.contains(&second(ports[1])), "{over_tls}");
    nodes[1].0.run("CONFIG SET cluster-announce-client-tls-port 7443").expect_ok();
    eventually("clients that speak TLS are sent to the port that is announced to them", || {
        let moved = authority.ask(ports[0], "GET foo").contains("MOVED 12182 127.0.0.1:7443");
        (moved && authority.ask(ports[0], "CLUSTER NODES").contains(&second(7443))).then_some(())
    });
    assert!(nodes[0].0.run("CLUSTER NODES").text().contains(&second(nodes[1].0.port)));
    // The bus is closed to peers without a certificate: a packet in plain text is ignored.
    let mut stranger = TcpStream::connect(("127.0.0.1", ports[0] + 10_000)).expect("the bus listens");
    stranger.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
    stranger.write_all(b"RCmb\0\0\x08\xd0").expect("it is sent");
    let mut answer = Vec::new();
    // Closed or reset, it ends.
    let _ = stranger.read_to_end(&mut answer);
    assert!(nodes[0].0.log().contains("Error accepting cluster node connection"), "{}", nodes[0].0.log());
    let outsider = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{}", ports[0] + 10_000), "-CAfile"])
        .arg(authority.path("ca.crt"))
        .stdin(Stdio::null())
        .output()
        .expect("openssl runs");
    drop(outsider);
    eventually("who has no certificate is turned away", || {
        nodes[0].0.log().contains("peer sent no certificates").then_some(())
    });
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Masters, replicas and sentinels that have no port but those of TLS: a dead master is replaced.
#[test]
fn sentinels_speak_tls_with_each_other_and_with_servers() {
    let authority = Authority::new("client");
    let (mut master, port) = authority.start("--tls-replication yes");
    let (_replica, replica_port) =
        authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    let path = |name: &str| authority.path(name).display().to_string();
    let claims = harness::claim_ports(3);
    let _sentinels: Vec<Ended> = claims
        .iter()
        .map(|claim| {
            let file = authority.path(&format!("sentinel-{}.conf", claim.port));
            let text = format!(
                "port 0\ntls-port {}\ntls-replication yes\ntls-cert-file {}\ntls-key-file {}\n\
                 tls-ca-cert-file {}\nsentinel monitor m 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds m 1000\n",
                claim.port,
                path("server.crt"),
                path("server.key"),
                path("ca.crt")
            );
            fs::write(&file, text).expect("a file can be written");
            let mut sentinel = Program::redoubt().command();
            sentinel.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
            Ended(sentinel.spawn().expect("it starts"))
        })
        .collect();
    let known = |claim: &PortClaim, what: &str| {
        let told = authority.say(claim.port, Some("client"), &["SENTINEL", "MASTER", "m"]).ok()?;
        told.contains(what).then_some(())
    };
    for claim in &claims {
        eventually("a sentinel knows the others", || known(claim, "num-other-sentinels\n2"));
        eventually("a sentinel knows the replica", || known(claim, "num-slaves\n1"));
    }
    master.kill();
    eventually("the replica is the master", || {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m"];
        let told = authority.say(claims[0].port, Some("client"), &words).ok()?;
        told.ends_with(&replica_port.to_string()).then_some(())
    });
    eventually("it serves", || authority.ask(replica_port, "SET k v").eq("OK").then_some(()));
}

/// A configuration that cannot work stops the start, and says why.
#[test]
fn what_is_missing_stops_the_start() {
    let authority = Authority::new("client");
    let path = |name: &str| authority.path(name).display().to_string();
    let empty = path("empty");
    fs::write(&empty, "").expect("a file can be written");
    let port = claim_port().port;
    for (options, reason) in [
        ("--save ".to_owned(), "tls-cert-file and tls-key-file must be specified"),
        (
            format!("--save  --tls-cert-file {} --tls-key-file {}", path("server.crt"), path("server.key")),
            "Either tls-ca-cert-file or tls-ca-cert-dir must be specified",
        ),
        (format!("{} --tls-cert-file {empty}", authority.options()), "has no certificate"),
        (
            format!("{} --tls-key-file {}", authority.options(), path("client.key")),
            "tls-cert-file and tls-key-file",
        ),
    ] {
        let mut node = Node::prepare(&Program::redoubt(), &format!("{options} --tls-port {port}"));
        node.spawn();
        assert!(!node.ended().success());
        let log = node.log();
        assert!(log.contains("Failed to configure TLS") && log.contains(reason), "{options}: {log}");
    }
}

/// A certificate as `openssl x509 -req` makes it without extensions is of the first version of X.509.
#[test]
fn a_certificate_of_the_first_version_serves() {
    let authority = Authority::new("client");
    let openssl = |arguments: &str| authority.openssl(arguments);
    openssl("req -new -key server.key -subj /CN=old -out old.csr");
    openssl("x509 -req -in old.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.crt");
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let claim = claim_port();
        let options = format!("{} --tls-port {} --tls-auth-clients no", authority.options(), claim.port);
        let _node = Node::start(&program, &options);
        assert_eq!(authority.ask(claim.port, "PING"), "PONG", "{}", program.name());
    }
}

/// `openssl req -x509` makes a CA certificate, and the shortest tutorials use it as certificate and as CA file.
#[test]
fn self_signed_certificate_is_its_own_authority() {
    let authority = Authority::new("client");
    authority.openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.crt -days 30 -subj /CN=localhost",
    );
    for copy in ["ca.crt", "client.crt"] {
        fs::copy(authority.path("server.crt"), authority.path(copy)).expect("the certificate is copied");
    }
    fs::copy(authority.path("server.key"), authority.path("client.key")).expect("the key is copied");
    let stranger = Authority::new("client");
    for copy in ["client.crt", "client.key"] {
        fs::copy(stranger.path(copy), authority.path(&copy.replace("client", "stranger"))).expect("copied");
    }
    for version in ["TLSv1.2", "TLSv1.3"] {
        let (master, port) = authority.start(&format!("--tls-protocols {version}"));
        assert_eq!(authority.ask(port, "PING"), "PONG", "{version}");
        assert!(authority.say(port, Some("stranger"), &["PING"]).is_err(), "{version}");
        assert!(authority.say(port, None, &["PING"]).is_err(), "{version}");
        let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
        eventually("the replica is linked", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
        drop(master);
    }
    let cluster = "--cluster-enabled yes --tls-cluster yes --port 0";
    let ((_first, first), (_second, second)) = (authority.start(cluster), authority.start(cluster));
    assert_eq!(authority.ask(first, &format!("CLUSTER MEET 127.0.0.1 {second}")), "OK");
    eventually("the nodes have met over TLS", || {
        let nodes = authority.ask(second, "CLUSTER NODES");
        (nodes.lines().count() == 2 && !nodes.contains("handshake")).then_some(())
    });
}

/// OpenSSL lets a CA certificate serve: one that another CA has signed is as good as any other leaf.
#[test]
fn ca_certificate_may_be_used_as_leaf() {
    let authority = Authority::new("client");
    fs::write(authority.path("ca.ext"), "basicConstraints=critical,CA:TRUE\n").expect("a file is written");
    for name in ["server", "client"] {
        authority.openssl(&format!("req -new -key {name}.key -subj /CN={name} -out {name}.csr"));
        authority.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile ca.ext -out {name}.crt"
        ));
    }
    let (master, port) = authority.start("");
    assert_eq!(authority.ask(port, "PING"), "PONG");
    let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    drop(master);
}

#[test]
fn unsupported_keys_are_refused_with_the_supported_kinds() {
    let authority = Authority::new("client");
    let port = claim_port().port;
    let path = |name: &str| authority.path(name).display().to_string();
    let keys = [
        ("p521", "ec -pkeyopt ec_paramgen_curve:secp521r1", "supported key types: RSA"),
        ("pss", "rsa-pss", "supported key types: RSA"),
    ];
    for (name, kind, _) in keys {
        authority.openssl(&format!(
            "req -x509 -newkey {kind} -nodes -keyout {name}.key -out {name}.crt -days 30 -subj /CN={name}"
        ));
    }
    authority.openssl("ec -aes128 -passout pass:secret -in server.key -out traditional.key");
    let mut cases = vec![(format!("--tls-key-file {}", path("traditional.key")), "openssl pkcs8 -topk8")];
    for (name, _, reason) in keys {
        let (certificate, key) = (path(&format!("{name}.crt")), path(&format!("{name}.key")));
        cases.push((format!("--tls-cert-file {certificate} --tls-key-file {key}"), reason));
        cases.push((format!("--tls-ca-cert-file {certificate}"), reason));
    }
    for (options, reason) in cases {
        let options = format!("{} --tls-port {port} {options}", authority.options());
        let mut node = Node::prepare(&Program::redoubt(), &options);
        node.spawn();
        assert!(!node.ended().success(), "{options}");
        let log = node.log();
        assert!(log.contains("Failed to configure TLS") && log.contains(reason), "{options}: {log}");
    }
}

/// DEBUG FORCE-TLS-WRITE-ERROR: a client that is spoken to by TLS loses its connection, one by TCP hears its replies. In
/// Valkey, too, it has no client then; it leaves the socket open.
#[test]
fn writes_by_tls_fail_on_request() {
    let authority = Authority::new("client");
    let (node, port) = authority.start("--enable-debug-command yes");
    let clients = || node.run("CLIENT LIST").text().lines().count();
    assert_eq!(authority.ask(port, "PING"), "PONG");
    node.run("DEBUG FORCE-TLS-WRITE-ERROR 1").expect_ok();
    assert!(authority.say(port, Some("client"), &["PING"]).is_err());
    eventually("its connection is gone", || (clients() == 1).then_some(()));
    node.run("DEBUG FORCE-TLS-WRITE-ERROR 0").expect_ok();
    assert_eq!(authority.ask(port, "PING"), "PONG");
}

/// The story: a client, or a master, that showed a certificate of the first version was turned away, where Valkey takes
/// it. One of another authority is refused all the same, and one of another day.
#[test]
fn who_shows_a_certificate_of_the_first_version_is_let_in() {
    let (authority, stranger) = (Authority::new("client"), Authority::new("client"));
    let openssl = |arguments: &str| authority.openssl(arguments);
    let foreign = stranger.path("ca").display().to_string();
    openssl("req -new -key client.key -subj /CN=old -out old.csr");
    openssl("x509 -req -in old.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out old.crt");
    openssl(&format!(
        "x509 -req -in old.csr -CA {foreign}.crt -CAkey {foreign}.key -set_serial 7 -days 30 -out foreign.crt"
    ));
    for name in ["old.key", "foreign.key"] {
        fs::copy(authority.path("client.key"), authority.path(name)).expect("it can be copied");
    }
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        for version in ["TLSv1.2", "TLSv1.3"] {
            let claim = claim_port();
            let options =
                format!("{} --tls-port {} --tls-protocols {version}", authority.options(), claim.port);
            let _node = Node::start(&program, &options);
            let name = format!("{} {version}", program.name());
            let say = |certificate| authority.say(claim.port, certificate, &["PING"]);
            assert_eq!(say(Some("old")).as_deref(), Ok("PONG"), "{name}");
            assert_eq!(say(Some("client")).as_deref(), Ok("PONG"), "{name}");
            assert!(say(Some("foreign")).is_err(), "{name}");
            assert!(say(None).is_err(), "{name}");
        }
    }
    // The certificate of a master, too: its replica takes it for what it is.
    openssl("req -new -key server.key -subj /CN=old -out master.csr");
    openssl("x509 -req -in master.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.crt");
    let (master, port) = authority.start("");
    let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    drop(master);
    let mut later = Node::prepare(&Program::redoubt(), &authority.options());
    if permitted("a clock of its own", later.fake_clock()).is_some() {
        let claim = claim_port();
        later.add_options(&format!("--tls-port {}", claim.port));
        later.set_clock(60 * 24 * 3600);
        later.launch();
        assert!(authority.say(claim.port, Some("old"), &["PING"]).is_err(), "its days are over");
        assert_eq!(authority.say(claim.port, Some("client"), &["PING"]).as_deref(), Ok("PONG"));
    }
}

/// Asks for the figures over TLS, with a client's certificate or without one.
fn scrape(authority: &Authority, port: u16, certificate: Option<&str>) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]).stderr(Stdio::null());
    if let Some(name) = certificate {
        openssl.arg("-cert").arg(authority.path(&format!("{name}.crt")));
        openssl.arg("-key").arg(authority.path(&format!("{name}.key")));
    }
    let mut openssl =
        openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("openssl is installed");
    let mut input = openssl.stdin.take().expect("it is piped");
    // It may have been turned away already.
    let _ = input.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    openssl.stdout.take().expect("it is piped").read_to_end(&mut answer).expect("it answers");
    openssl.wait().expect("it ends");
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn figures_are_shown_over_tls_to_clients_with_a_certificate() {
    let authority = Authority::new("client");
    let claim = claim_port();
    // No other parameter asks for TLS.
    let options = format!("{} --metrics-port {} --metrics-tls yes", authority.options(), claim.port);
    let node = Node::start(&Program::redoubt(), &options);
    let shown = scrape(&authority, claim.port, Some("client"));
    assert!(shown.contains("200 OK") && shown.contains("redis_up 1"), "{shown}");
    let refused = scrape(&authority, claim.port, None);
    assert!(!refused.contains("redis_up"), "{refused}");
    node.run("CONFIG SET tls-auth-clients no metrics-password secret").expect_ok();
    let asked = scrape(&authority, claim.port, None);
    assert!(asked.contains(" 401 ") && !asked.contains("redis_up"), "{asked}");
}
