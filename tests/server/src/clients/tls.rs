//! Tests of TLS on real servers: clients, replicas, cluster nodes and sentinels, and peers that must be rejected.

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{
    Node, PortClaim, Program, Reply, claim_port, eventually, redis_cli, run_to_end, value_or_skip,
};
use tempfile::TempDir;

/// A certificate authority of the test, with certificates for a server and a client.
struct CertificateAuthority {
    directory: TempDir,
    /// The TLS ports of the servers started with these certificates.
    port_claims: RefCell<Vec<PortClaim>>,
}

impl CertificateAuthority {
    fn new(client_name: &str) -> Self {
        Self::with_uris(client_name, &[])
    }

    /// Puts `uris` into the subject alternative names of the client certificate.
    fn with_uris(client_name: &str, uris: &[&str]) -> Self {
        let directory = TempDir::new().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-certificates");
        let (status, printed) =
            run_to_end(Command::new(script).arg(directory.path()).arg(client_name).args(uris));
        assert!(status.success(), "{printed}");
        Self { directory, port_claims: RefCell::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs openssl in the directory of the certificates.
    fn run_openssl(&self, arguments: &str) {
        let mut openssl = Command::new("openssl");
        let (status, printed) =
            run_to_end(openssl.args(arguments.split(' ')).current_dir(self.directory.path()));
        assert!(status.success(), "openssl {arguments}: {printed}");
    }

    /// The server options that select these certificates.
    fn server_options(&self) -> String {
        let path = |name| self.path(name).display().to_string();
        format!(
            "--save  --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file {}",
            path("server.crt"),
            path("server.key"),
            path("ca.crt")
        )
    }

    /// Starts a server with a TLS port; also returns that port.
    fn start_program(&self, program: &Program, options: &str) -> (Node, u16) {
        let claim = claim_port();
        let port = claim.port;
        self.port_claims.borrow_mut().push(claim);
        let options = format!("{} --tls-port {port} {options}", self.server_options());
        (Node::start(program, &options), port)
    }

    fn start(&self, options: &str) -> (Node, u16) {
        self.start_program(&Program::redoubt(), options)
    }

    /// Runs a command with redis-cli over TLS, with the client certificate of that name or without one.
    fn run_cli(&self, port: u16, certificate: Option<&str>, words: &[&str]) -> Result<String, String> {
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

    fn run_line(&self, port: u16, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        self.run_cli(port, Some("client"), &words).unwrap_or_else(|error| panic!("{line}: {error}"))
    }
}

/// Starts `redis-cli` with piped input and output.
fn start_piped_redis_cli(arguments: &[&str]) -> Child {
    let mut cli = Command::new("redis-cli");
    cli.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    cli.spawn().expect("redis-cli is installed (scripts/install-test-tools)")
}

#[test]
fn clients_need_a_valid_certificate() {
    let authority = CertificateAuthority::new("client");
    let (node, port) = authority.start("");
    assert_eq!(authority.run_line(port, "SET k v"), "OK");
    assert_eq!(authority.run_line(port, "GET k"), "v");
    // The value spans several TLS records.
    let long = "x".repeat(100_000);
    assert_eq!(authority.run_line(port, &format!("SET long {long}")), "OK");
    assert_eq!(authority.run_line(port, "GET long"), long);
    assert_eq!(authority.run_line(port, "STRLEN long"), "100000");
    assert_eq!(node.run("GET k").text(), "v");
    let answered = |printed: Result<String, String>| printed.is_ok_and(|text| text == "PONG");
    assert!(
        !answered(authority.run_cli(port, None, &["PING"])),
        "a client without a certificate must be rejected"
    );
    let other = CertificateAuthority::new("client");
    assert!(
        !answered(other.run_cli(port, Some("client"), &["PING"])),
        "a certificate of another authority must be rejected"
    );
    node.run("CONFIG SET tls-auth-clients optional").expect_ok();
    assert!(answered(authority.run_cli(port, None, &["PING"])));
    assert!(
        !answered(other.run_cli(port, Some("client"), &["PING"])),
        "an optional certificate must still be valid"
    );
    node.run("CONFIG SET tls-auth-clients no").expect_ok();
    assert!(answered(authority.run_cli(port, None, &["PING"])));
    let server = node.run("INFO server").text();
    assert!(server.contains(&format!("name=tls,bind=127.0.0.1,port={port}")), "{server}");
    assert!(server.contains("tls_server_cert_serial:") && server.contains("tls_ca_cert_expires_in_seconds:"));
    // The TLS port does not accept plain text.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    plain.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
    plain.write_all(b"PING\r\n").expect("it is sent");
    let mut answer = Vec::new();
    // The server may close or reset the connection.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"+PONG"), "{answer:?}");
}

/// The client sends a pipeline whose replies fill every buffer before it starts to read.
#[test]
fn no_reply_is_lost_when_tls_buffers_are_full() {
    const VALUE_LEN: usize = 300_000;
    const READ_COUNT: usize = 200;
    let authority = CertificateAuthority::new("client");
    let (_node, port) = authority.start("--tls-auth-clients no");
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-connect", &address]).stderr(Stdio::null());
    let mut client =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("openssl is installed");
    let mut input = client.stdin.take().expect("it is piped");
    write!(input, "SETRANGE k {} y\r\n{}QUIT\r\n", VALUE_LEN - 1, "GET k\r\n".repeat(READ_COUNT))
        .expect("it reads");
    eventually("the server has replies that do not fit the socket buffer", || {
        let clients = authority.run_line(port, "CLIENT LIST");
        clients.lines().any(|line| !line.contains(" omem=0 ")).then_some(())
    });
    let mut answer = Vec::new();
    client.stdout.take().expect("it is piped").read_to_end(&mut answer).expect("it answers");
    client.wait().expect("it ends");
    let value = [&vec![0; VALUE_LEN - 1][..], b"y"].concat();
    let read = [format!("${VALUE_LEN}\r\n").as_bytes(), &value, b"\r\n"].concat();
    let expected = [format!(":{VALUE_LEN}\r\n").as_bytes(), &read.repeat(READ_COUNT), b"+OK\r\n"].concat();
    assert!(answer == expected, "{} bytes of {}", answer.len(), expected.len());
}

#[test]
fn certificates_can_be_replaced_while_clients_are_connected() {
    let authority = CertificateAuthority::new("client");
    let (node, port) = authority.start("--tls-auth-clients no");
    let path = |name: &str| authority.path(name).display().to_string();
    let mut cli = start_piped_redis_cli(&["-p", &port.to_string(), "--tls", "--cacert", &path("ca.crt")]);
    let (mut input, mut output) = (cli.stdin.take().expect("piped"), cli.stdout.take().expect("piped"));
    let mut ask = |line: &str| {
        writeln!(input, "{line}").expect("it reads");
        let mut bytes = [0; 64];
        let len = output.read(&mut bytes).expect("it answers");
        String::from_utf8_lossy(&bytes[..len]).trim().to_owned()
    };
    assert_eq!(ask("PING"), "PONG");
    node.run(&format!("CONFIG SET tls-cert-file {}", path("expired.crt"))).expect_ok();
    let refused = authority.run_cli(port, None, &["PING"]);
    assert!(refused.as_deref() != Ok("PONG"), "its certificate has expired: {refused:?}");
    assert_eq!(ask("PING"), "PONG", "connected clients stay connected");
    // An unusable certificate is refused, and the current one stays in use.
    let wrong = node.run(&format!("CONFIG SET tls-cert-file {}", path("client.crt")));
    assert!(format!("{wrong:?}").contains("Unable to update TLS configuration"), "{wrong:?}");
    assert_eq!(node.run("CONFIG GET tls-cert-file").items()[1].text(), path("expired.crt"));
    node.run(&format!("CONFIG SET tls-cert-file {}", path("server.crt"))).expect_ok();
    assert_eq!(authority.run_cli(port, None, &["PING"]).as_deref(), Ok("PONG"));
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
    assert_eq!(authority.run_cli(port, None, &["PING"]).as_deref(), Ok("PONG"));
    drop(input);
    cli.wait().expect("it ends");
}

/// A regular file is in the place of `appenddirname`, so the last step of CONFIG SET fails.
#[test]
fn failed_config_set_keeps_certificates_and_listeners() {
    let authority = CertificateAuthority::new("client");
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
        assert_eq!(authority.run_cli(port, None, &["PING"]).as_deref(), Ok("PONG"), "{changed}");
        assert!(
            authority.run_cli(other.port, None, &["PING"]).is_err(),
            "{changed}: the new port must not be open"
        );
    }
}

/// Changed certificate files are reloaded automatically; unusable files change nothing.
#[test]
fn changed_certificates_are_reloaded_automatically() {
    let authority = CertificateAuthority::new("client");
    let (certificate, expired) = (authority.path("server.crt"), authority.path("expired.crt"));
    let (node, port) = authority.start("--tls-auth-clients no --tls-auto-reload-interval 1");
    let serial = || node.info("server", "tls_server_cert_serial");
    let (before, kept) = (serial(), fs::read(&certificate).expect("it is there"));
    assert_eq!(authority.run_cli(port, None, &["PING"]).as_deref(), Ok("PONG"));
    fs::copy(expired, &certificate).expect("the folder can be written to");
    eventually("the new certificate is in use", || (serial() != before).then_some(()));
    assert!(
        authority.run_cli(port, None, &["PING"]).as_deref() != Ok("PONG"),
        "the new certificate has expired"
    );
    fs::write(&certificate, "no certificate").expect("the folder can be written to");
    eventually("the log has the error", || {
        node.log().contains("were changed and cannot be used").then_some(())
    });
    assert!(serial().is_some() && serial() != before);
    fs::write(&certificate, kept).expect("the folder can be written to");
    eventually("the first certificate is in use again", || (serial() == before).then_some(()));
    assert_eq!(authority.run_cli(port, None, &["PING"]).as_deref(), Ok("PONG"));
}

/// The server must decrypt a private key that is encrypted with a password.
#[test]
fn private_key_can_be_encrypted() {
    let authority = CertificateAuthority::new("client");
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
    assert_eq!(authority.run_line(port, "PING"), "PONG");
    let mut node = Node::prepare(
        &Program::redoubt(),
        &format!("{} --tls-port {port} --tls-key-file {}", authority.server_options(), encrypted.display()),
    );
    node.spawn();
    assert!(!node.wait_for_exit_before_relaunch().success());
    assert!(node.log().contains("Failed to configure TLS"), "{}", node.log());
}

#[test]
fn certificate_common_name_selects_the_user() {
    let authority = CertificateAuthority::new("alice");
    let (node, port) = authority.start("--tls-auth-clients-user CN");
    assert_eq!(authority.run_line(port, "ACL WHOAMI"), "default");
    assert_eq!(node.info("stats", "acl_access_denied_tls_cert").as_deref(), Some("1"));
    node.run("ACL SETUSER alice on +acl|whoami +get ~a").expect_ok();
    assert_eq!(authority.run_line(port, "ACL WHOAMI"), "alice");
    assert!(authority.run_line(port, "GET b").starts_with("NOPERM"));
    node.run("ACL SETUSER alice off").expect_ok();
    assert_eq!(authority.run_line(port, "ACL WHOAMI"), "default");
}

/// The user is the first URI that names an enabled user. If no URI names one, the last URI is logged. Valkey behaves in
/// the same way.
#[test]
fn certificate_uri_selects_the_user() {
    let authority = CertificateAuthority::with_uris("carol", &["urn:off", "urn:alice", "urn:bob"]);
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let (node, port) = authority.start_program(&program, "--tls-auth-clients-user URI");
        assert_eq!(authority.run_line(port, "ACL WHOAMI"), "default");
        let denied = || node.info("stats", "acl_access_denied_tls_cert");
        assert_eq!(denied().as_deref(), Some("1"));
        assert!(format!("{:?}", node.run("ACL LOG")).contains("urn:bob"));
        node.run("ACL SETUSER urn:off off").expect_ok();
        node.run("ACL SETUSER urn:bob on +@all").expect_ok();
        node.run("ACL SETUSER carol on +@all").expect_ok();
        assert_eq!(authority.run_line(port, "ACL WHOAMI"), "urn:bob");
        node.run("ACL SETUSER urn:alice on +acl|whoami").expect_ok();
        assert_eq!(authority.run_line(port, "ACL WHOAMI"), "urn:alice");
        node.run("CONFIG SET tls-auth-clients-user CN").expect_ok();
        assert_eq!(authority.run_line(port, "ACL WHOAMI"), "carol");
        assert_eq!(denied().as_deref(), Some("1"));
    }
}

#[test]
fn replication_over_tls_rejects_untrusted_replicas() {
    let authority = CertificateAuthority::new("client");
    let (master, port) = authority.start("--tls-replication yes");
    master.run("SET k v").expect_ok();
    let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    eventually("the replica has the data", || {
        (replica.run("GET k") == Reply::Bulk(b"v".to_vec())).then_some(())
    });
    for number in 0..2000 {
        master.run(&format!("SET key:{number} {}", "z".repeat(500)));
    }
    eventually("the replica has all of it", || (replica.run("DBSIZE") == Reply::Int(2001)).then_some(()));
    assert_eq!(master.run("WAIT 1 10000").int(), 1);
    // A replica with certificates of another authority is rejected, and it does not accept the master's certificate.
    let other = CertificateAuthority::new("client");
    let (stranger, _) = other.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    harness::never_within(Duration::from_secs(2), "an untrusted replica is linked", || {
        stranger.info("replication", "master_link_status").as_deref() == Some("up")
    });
}

/// The snapshot and the replication stream use two connections, and both must use TLS.
#[test]
fn both_replication_channels_use_tls() {
    let authority = CertificateAuthority::new("client");
    let options = "--tls-replication yes --dual-channel-replication-enabled yes --repl-diskless-sync-delay 0";
    let (master, port) = authority.start(options);
    let script = "for i = 1, 2000 do redis.call('set', 'key:' .. i, 'value') end return redis.call('dbsize')";
    assert_eq!(master.connect().call(&["EVAL", script, "0"]), Reply::Int(2000));
    master.run("CONFIG SET rdb-key-save-delay 1000").expect_ok();
    let (replica, _) = authority.start(&format!("{options} --replicaof 127.0.0.1 {port}"));
    eventually("the replica has two channels", || {
        let replicas = [master.info("replication", "slave0")?, master.info("replication", "slave1")?];
        let is_there = |kind: &&str| replicas.iter().any(|replica| replica.contains(*kind));
        ["type=rdb-channel", "type=main-channel"].iter().all(is_there).then_some(())
    });
    master.run("SET meanwhile yes").expect_ok();
    eventually("the replica has all data", || {
        // The replica does not answer DBSIZE while it loads the snapshot.
        let all = replica.run("DBSIZE") == Reply::Int(2001);
        (all && replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    assert_eq!(master.run("WAIT 1 10000").int(), 1);
}

/// A client that stops in the middle of a handshake is disconnected after a timeout and does not block other clients.
#[test]
fn incomplete_tls_handshakes_time_out() {
    let authority = CertificateAuthority::new("client");
    let (node, port) = authority.start("--tls-auth-clients no");
    let mut half: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens")).collect();
    for stream in &mut half {
        // These bytes are the start of a ClientHello.
        stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).expect("it is sent");
    }
    assert_eq!(authority.run_cli(port, None, &["PING"]).as_deref(), Ok("PONG"));
    eventually("all incomplete handshakes are closed", || {
        (node.info("clients", "connected_clients").as_deref() == Some("1")).then_some(())
    });
    let mut rest = Vec::new();
    half[0].set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
    assert_eq!(half[0].read_to_end(&mut rest).unwrap_or(0), 0);
}

/// The nodes of the cluster use TLS on the bus. Peers without a certificate of the authority are rejected.
#[test]
fn cluster_bus_uses_tls() {
    let authority = CertificateAuthority::new("client");
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
        assert_eq!(authority.run_line(*port, &format!("CLUSTER MEET 127.0.0.1 {first}")), "OK");
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
    // A redirect names the TLS port to TLS clients and the plain port to other clients.
    let moved = authority.run_line(ports[0], "GET foo");
    assert!(moved.contains(&format!("MOVED 12182 127.0.0.1:{}", ports[1])), "{moved}");
    let moved = format!("{:?}", nodes[0].0.run("GET foo"));
    assert!(moved.contains(&format!("127.0.0.1:{}", nodes[1].0.port)), "{moved}");
    let second = |port: u16| format!(" 127.0.0.1:{port}@{}", ports[1] + 10_000);
    let (plain, over_tls) =
        (nodes[0].0.run("CLUSTER NODES").text(), authority.run_line(ports[0], "CLUSTER NODES"));
    assert!(plain.contains(&second(nodes[1].0.port)), "{plain}");
    assert!(over_tls.contains(&second(ports[1])), "{over_tls}");
    nodes[1].0.run("CONFIG SET cluster-announce-client-tls-port 7443").expect_ok();
    eventually("TLS clients are redirected to the announced TLS port", || {
        let moved = authority.run_line(ports[0], "GET foo").contains("MOVED 12182 127.0.0.1:7443");
        (moved && authority.run_line(ports[0], "CLUSTER NODES").contains(&second(7443))).then_some(())
    });
    assert!(nodes[0].0.run("CLUSTER NODES").text().contains(&second(nodes[1].0.port)));
    // The bus rejects peers without a certificate and ignores packets in plain text.
    let mut stranger = TcpStream::connect(("127.0.0.1", ports[0] + 10_000)).expect("the bus listens");
    stranger.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
    stranger.write_all(b"RCmb\0\0\x08\xd0").expect("it is sent");
    let mut answer = Vec::new();
    // The node may close or reset the connection.
    let _ = stranger.read_to_end(&mut answer);
    assert!(nodes[0].0.log().contains("Error accepting cluster node connection"), "{}", nodes[0].0.log());
    let outsider = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{}", ports[0] + 10_000), "-CAfile"])
        .arg(authority.path("ca.crt"))
        .stdin(Stdio::null())
        .output()
        .expect("openssl runs");
    drop(outsider);
    eventually("a peer without a certificate is rejected", || {
        nodes[0].0.log().contains("peer sent no certificates").then_some(())
    });
}

/// A process that is killed when the test ends.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Masters, replicas and sentinels have TLS ports only. The sentinels must fail over from a dead master.
#[test]
fn sentinels_fail_over_with_tls_only() {
    let authority = CertificateAuthority::new("client");
    let (mut master, port) = authority.start("--tls-replication yes");
    let (_replica, replica_port) =
        authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    let path = |name: &str| authority.path(name).display().to_string();
    let claims = harness::claim_ports(3);
    let _sentinels: Vec<KillOnDrop> = claims
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
            KillOnDrop(sentinel.spawn().expect("it starts"))
        })
        .collect();
    let sentinel_shows = |claim: &PortClaim, text: &str| {
        let reply = authority.run_cli(claim.port, Some("client"), &["SENTINEL", "MASTER", "m"]).ok()?;
        reply.contains(text).then_some(())
    };
    for claim in &claims {
        eventually("a sentinel knows the others", || sentinel_shows(claim, "num-other-sentinels\n2"));
        eventually("a sentinel knows the replica", || sentinel_shows(claim, "num-slaves\n1"));
    }
    master.kill();
    eventually("the replica is the master", || {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m"];
        let reply = authority.run_cli(claims[0].port, Some("client"), &words).ok()?;
        reply.ends_with(&replica_port.to_string()).then_some(())
    });
    eventually("the new master serves writes", || {
        authority.run_line(replica_port, "SET k v").eq("OK").then_some(())
    });
}

/// An unusable TLS configuration prevents startup, and the log gives the reason.
#[test]
fn incomplete_tls_configuration_prevents_startup() {
    let authority = CertificateAuthority::new("client");
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
        (format!("{} --tls-cert-file {empty}", authority.server_options()), "has no certificate"),
        (
            format!("{} --tls-key-file {}", authority.server_options(), path("client.key")),
            "tls-cert-file and tls-key-file",
        ),
    ] {
        let mut node = Node::prepare(&Program::redoubt(), &format!("{options} --tls-port {port}"));
        node.spawn();
        assert!(!node.wait_for_exit_before_relaunch().success());
        let log = node.log();
        assert!(log.contains("Failed to configure TLS") && log.contains(reason), "{options}: {log}");
    }
}

/// Without extensions, `openssl x509 -req` creates an X.509 version 1 certificate, which the server must accept.
#[test]
fn server_can_use_an_x509_version_1_certificate() {
    let authority = CertificateAuthority::new("client");
    let openssl = |arguments: &str| authority.run_openssl(arguments);
    openssl("req -new -key server.key -subj /CN=old -out old.csr");
    openssl("x509 -req -in old.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.crt");
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let claim = claim_port();
        let options =
            format!("{} --tls-port {} --tls-auth-clients no", authority.server_options(), claim.port);
        let _node = Node::start(&program, &options);
        assert_eq!(authority.run_line(claim.port, "PING"), "PONG", "{}", program.name());
    }
}

/// `openssl req -x509` creates a CA certificate; short tutorials use this file both as the certificate and as the CA
/// file.
#[test]
fn self_signed_certificate_can_be_its_own_ca_file() {
    let authority = CertificateAuthority::new("client");
    authority.run_openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.crt -days 30 -subj /CN=localhost",
    );
    for copy in ["ca.crt", "client.crt"] {
        fs::copy(authority.path("server.crt"), authority.path(copy)).expect("the certificate is copied");
    }
    fs::copy(authority.path("server.key"), authority.path("client.key")).expect("the key is copied");
    let stranger = CertificateAuthority::new("client");
    for copy in ["client.crt", "client.key"] {
        fs::copy(stranger.path(copy), authority.path(&copy.replace("client", "stranger"))).expect("copied");
    }
    for version in ["TLSv1.2", "TLSv1.3"] {
        let (master, port) = authority.start(&format!("--tls-protocols {version}"));
        assert_eq!(authority.run_line(port, "PING"), "PONG", "{version}");
        assert!(authority.run_cli(port, Some("stranger"), &["PING"]).is_err(), "{version}");
        assert!(authority.run_cli(port, None, &["PING"]).is_err(), "{version}");
        let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
        eventually("the replica is linked", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
        drop(master);
    }
    let cluster = "--cluster-enabled yes --tls-cluster yes --port 0";
    let ((_first, first), (_second, second)) = (authority.start(cluster), authority.start(cluster));
    assert_eq!(authority.run_line(first, &format!("CLUSTER MEET 127.0.0.1 {second}")), "OK");
    eventually("the nodes have met over TLS", || {
        let nodes = authority.run_line(second, "CLUSTER NODES");
        (nodes.lines().count() == 2 && !nodes.contains("handshake")).then_some(())
    });
}

/// OpenSSL accepts a CA certificate that another CA has signed as a leaf certificate, so the server must do so too.
#[test]
fn ca_certificate_can_be_used_as_server_certificate() {
    let authority = CertificateAuthority::new("client");
    fs::write(authority.path("ca.ext"), "basicConstraints=critical,CA:TRUE\n").expect("a file is written");
    for name in ["server", "client"] {
        authority.run_openssl(&format!("req -new -key {name}.key -subj /CN={name} -out {name}.csr"));
        authority.run_openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile ca.ext -out {name}.crt"
        ));
    }
    let (master, port) = authority.start("");
    assert_eq!(authority.run_line(port, "PING"), "PONG");
    let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    drop(master);
}

#[test]
fn error_for_unsupported_key_lists_supported_key_types() {
    let authority = CertificateAuthority::new("client");
    let port = claim_port().port;
    let path = |name: &str| authority.path(name).display().to_string();
    let keys = [
        ("p521", "ec -pkeyopt ec_paramgen_curve:secp521r1", "supported key types: RSA"),
        ("pss", "rsa-pss", "supported key types: RSA"),
    ];
    for (name, kind, _) in keys {
        authority.run_openssl(&format!(
            "req -x509 -newkey {kind} -nodes -keyout {name}.key -out {name}.crt -days 30 -subj /CN={name}"
        ));
    }
    authority.run_openssl("ec -aes128 -passout pass:secret -in server.key -out traditional.key");
    let mut cases = vec![(format!("--tls-key-file {}", path("traditional.key")), "openssl pkcs8 -topk8")];
    for (name, _, reason) in keys {
        let (certificate, key) = (path(&format!("{name}.crt")), path(&format!("{name}.key")));
        cases.push((format!("--tls-cert-file {certificate} --tls-key-file {key}"), reason));
        cases.push((format!("--tls-ca-cert-file {certificate}"), reason));
    }
    for (options, reason) in cases {
        let options = format!("{} --tls-port {port} {options}", authority.server_options());
        let mut node = Node::prepare(&Program::redoubt(), &options);
        node.spawn();
        assert!(!node.wait_for_exit_before_relaunch().success(), "{options}");
        let log = node.log();
        assert!(log.contains("Failed to configure TLS") && log.contains(reason), "{options}: {log}");
    }
}

/// `DEBUG FORCE-TLS-WRITE-ERROR` disconnects TLS clients at the next reply; TCP clients are not affected. Valkey also
/// drops the client but leaves the socket open.
#[test]
fn debug_force_tls_write_error_disconnects_tls_clients() {
    let authority = CertificateAuthority::new("client");
    let (node, port) = authority.start("--enable-debug-command yes");
    let clients = || node.run("CLIENT LIST").text().lines().count();
    assert_eq!(authority.run_line(port, "PING"), "PONG");
    node.run("DEBUG FORCE-TLS-WRITE-ERROR 1").expect_ok();
    assert!(authority.run_cli(port, Some("client"), &["PING"]).is_err());
    eventually("the TLS client is disconnected", || (clients() == 1).then_some(()));
    node.run("DEBUG FORCE-TLS-WRITE-ERROR 0").expect_ok();
    assert_eq!(authority.run_line(port, "PING"), "PONG");
}

/// Regression test: clients and masters with an X.509 version 1 certificate were rejected, while Valkey accepts them.
/// Such certificates must still be rejected if another authority signed them or if they have expired.
#[test]
fn x509_version_1_certificates_of_peers_are_accepted() {
    let (authority, stranger) = (CertificateAuthority::new("client"), CertificateAuthority::new("client"));
    let openssl = |arguments: &str| authority.run_openssl(arguments);
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
                format!("{} --tls-port {} --tls-protocols {version}", authority.server_options(), claim.port);
            let _node = Node::start(&program, &options);
            let name = format!("{} {version}", program.name());
            let say = |certificate| authority.run_cli(claim.port, certificate, &["PING"]);
            assert_eq!(say(Some("old")).as_deref(), Ok("PONG"), "{name}");
            assert_eq!(say(Some("client")).as_deref(), Ok("PONG"), "{name}");
            assert!(say(Some("foreign")).is_err(), "{name}");
            assert!(say(None).is_err(), "{name}");
        }
    }
    // A replica must also accept a version 1 certificate of its master.
    openssl("req -new -key server.key -subj /CN=old -out master.csr");
    openssl("x509 -req -in master.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.crt");
    let (master, port) = authority.start("");
    let (replica, _) = authority.start(&format!("--tls-replication yes --replicaof 127.0.0.1 {port}"));
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    drop(master);
    let mut later = Node::prepare(&Program::redoubt(), &authority.server_options());
    if value_or_skip("a clock of its own", later.fake_clock()).is_some() {
        let claim = claim_port();
        later.add_options(&format!("--tls-port {}", claim.port));
        later.set_clock(60 * 24 * 3600);
        later.launch();
        assert!(
            authority.run_cli(claim.port, Some("old"), &["PING"]).is_err(),
            "the certificate has expired"
        );
        assert_eq!(authority.run_cli(claim.port, Some("client"), &["PING"]).as_deref(), Ok("PONG"));
    }
}

/// Requests `/metrics` over TLS, with a client certificate or without one.
fn fetch_metrics(authority: &CertificateAuthority, port: u16, certificate: Option<&str>) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]).stderr(Stdio::null());
    if let Some(name) = certificate {
        openssl.arg("-cert").arg(authority.path(&format!("{name}.crt")));
        openssl.arg("-key").arg(authority.path(&format!("{name}.key")));
    }
    let mut openssl =
        openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("openssl is installed");
    let mut input = openssl.stdin.take().expect("it is piped");
    // The server may have rejected the connection already.
    let _ = input.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    openssl.stdout.take().expect("it is piped").read_to_end(&mut answer).expect("it answers");
    openssl.wait().expect("it ends");
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn metrics_over_tls_require_a_client_certificate() {
    let authority = CertificateAuthority::new("client");
    let claim = claim_port();
    // Only the metrics port uses TLS.
    let options = format!("{} --metrics-port {} --metrics-tls yes", authority.server_options(), claim.port);
    let node = Node::start(&Program::redoubt(), &options);
    let shown = fetch_metrics(&authority, claim.port, Some("client"));
    assert!(shown.contains("200 OK") && shown.contains("redis_up 1"), "{shown}");
    let refused = fetch_metrics(&authority, claim.port, None);
    assert!(!refused.contains("redis_up"), "{refused}");
    node.run("CONFIG SET tls-auth-clients no metrics-password secret").expect_ok();
    let asked = fetch_metrics(&authority, claim.port, None);
    assert!(asked.contains(" 401 ") && !asked.contains("redis_up"), "{asked}");
}
