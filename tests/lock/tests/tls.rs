//! Tests of `redoubt lock` over TLS.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{Cluster, Node, PortClaim, Program, claim_port};
use tempfile::TempDir;

struct TestCa(TempDir);

impl TestCa {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-certificates");
        let made = Command::new(script).arg(folder.path()).stderr(Stdio::null()).status().unwrap();
        assert!(made.success());
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts a server with an additional TLS port.
    fn start(&self, options: &str) -> (Node, PortClaim) {
        let claim = claim_port();
        let path = |name| self.path(name).display().to_string();
        let options = format!(
            "--tls-port {} --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file {} {options}",
            claim.port,
            path("server.crt"),
            path("server.key"),
            path("ca.crt")
        );
        (Node::start(&Program::redoubt(), &options), claim)
    }

    fn run_lock_command(&self, url: &str, certificates: &[&str]) -> Option<i32> {
        let mut line = Command::new(Program::redoubt().binary());
        line.args(["lock", "l", "--wait", "5s", "--url", url]);
        for name in certificates {
            line.arg(match *name {
                "ca.crt" => "--cacert",
                "client.crt" => "--cert",
                _ => "--key",
            });
            line.arg(self.path(name));
        }
        line.args(["--", "true"]).stderr(Stdio::null()).status().unwrap().code()
    }
}

#[test]
fn server_and_client_certificates_are_verified() {
    let authority = TestCa::new();
    let (_node, port) = authority.start("");
    let url = format!("rediss://127.0.0.1:{}", port.port);
    let all = ["ca.crt", "client.crt", "client.key"];
    assert_eq!(authority.run_lock_command(&url, &all), Some(0));
    assert_eq!(
        authority.run_lock_command(&url, &all[..1]),
        Some(69),
        "the server requires a client certificate"
    );
    assert_eq!(authority.run_lock_command(&url, &[]), Some(69), "the system does not trust the test CA");
}

#[test]
fn redoubt_lock_works_with_a_tls_cluster() {
    let authority = TestCa::new();
    let (node, port) = authority.start("--cluster-enabled yes --tls-auth-clients no");
    let cluster = Cluster::join_nodes(vec![node], 1);
    let url = format!("rediss+cluster://127.0.0.1:{}", port.port);
    assert_eq!(authority.run_lock_command(&url, &["ca.crt"]), Some(0));
    assert_eq!(cluster.nodes[0].run("EXISTS l").int(), 0);
}
