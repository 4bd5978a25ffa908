//! Tests of the dashboard of `metrics-port` in a headless Chromium that is controlled by keyboard: it shows a running
//! cluster, and its key bindings work.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{Cluster, Node, PortClaim, Program, claim_port, eventually, report_skipped};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Chromium's options: headless, and no connections to outside services.
const CHROMIUM_FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];
/// WebDriver codes of the keys that produce no character.
const ARROW_RIGHT: &str = "\u{e014}";
const ARROW_DOWN: &str = "\u{e015}";
const ENTER: &str = "\u{e007}";

/// A Chromium that is driven by chromedriver over HTTP. Dropping it ends both processes.
struct Browser {
    driver: Child,
    port: PortClaim,
    session: String,
    _folder: TempDir,
}

impl Browser {
    /// Starts a browser with its own profile folder. Returns `None` if this machine has no browser; the skipped test is
    /// counted.
    fn start() -> Option<Self> {
        let port = claim_port();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", port.port)).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = match command.spawn() {
            Ok(driver) => driver,
            Err(error) => {
                report_skipped("the page in a browser", &format!("chromedriver: {error}"));
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let mut browser = Self { driver, port, session: String::new(), _folder: folder };
        let mut arguments: Vec<String> = CHROMIUM_FLAGS.iter().map(|&flag| flag.to_owned()).collect();
        arguments.push(format!("--user-data-dir={}", browser._folder.path().display()));
        let wish = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}});
        eventually("chromedriver answers", || browser.try_call("GET", "/status", None).ok());
        let session = browser.call("POST", "/session", Some(&wish));
        browser.session = format!("/session/{}", session["sessionId"].as_str().expect("a session has an id"));
        Some(browser)
    }

    /// Sends a request to the driver and returns the value of its response.
    fn try_call(&self, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        // The driver keeps the connection open, so the end of the body is given by the Content-Length header.
        let (mut reader, mut len) = (BufReader::new(stream), 0);
        for line in reader.by_ref().lines() {
            let line = line?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            len = line.strip_prefix("content-length:").map_or(Ok(len), |len| len.trim().parse()).unwrap_or(0);
        }
        let mut answer = vec![0; len];
        reader.read_exact(&mut answer)?;
        let value: Value = serde_json::from_slice(&answer).map_err(std::io::Error::other)?;
        Ok(value["value"].clone())
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let value = self.try_call(method, path, body).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(value.get("error").is_none(), "{method} {path}: {value}");
        value
    }

    fn post_request(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), Some(body))
    }

    fn open(&self, url: &str) {
        self.post_request("/url", &json!({ "url": url }));
    }

    /// Returns the value of a JavaScript expression on the page.
    fn evaluate(&self, expression: &str) -> Value {
        self.post_request("/execute/sync", &json!({"script": format!("return {expression}"), "args": []}))
    }

    fn element_text(&self, selector: &str) -> String {
        let text = self.evaluate(&format!("document.querySelector('{selector}').innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Presses keys one after another on the focused element.
    fn press_keys(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            [
                json!({"type": "keyDown", "value": key.to_string()}),
                json!({"type": "keyUp", "value": key.to_string()}),
            ]
        });
        let actions: Vec<Value> = strokes.collect();
        self.post_request(
            "/actions",
            &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}),
        );
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.try_call("DELETE", &self.session, None);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Starts three masters, the second with a replica, and returns their metrics ports.
fn start_cluster() -> (Cluster, Vec<PortClaim>) {
    let ports: Vec<PortClaim> = (0..4).map(|_| claim_port()).collect();
    let start = |port: &PortClaim| {
        let options = format!(
            "--cluster-enabled yes --cluster-node-timeout 3000 --slowlog-log-slower-than 0 --metrics-port {}",
            port.port
        );
        Node::start(&Program::redoubt(), &options)
    };
    let cluster = Cluster::join_nodes(ports.iter().map(start).collect(), 3);
    cluster.make_replica(3, 1);
    cluster.wait_until_ok();
    cluster.wait_until_synchronised();
    (cluster, ports)
}

#[test]
fn dashboard_shows_cluster_and_supports_keyboard() {
    let Some(browser) = Browser::start() else { return };
    let (cluster, ports) = start_cluster();
    let node = &cluster.nodes[0];
    // The tag 3560 puts the keys into slot 0, which belongs to the first node.
    for number in 0..50 {
        node.run(&format!("SET {{3560}}:user:{number} {}", "x".repeat(100)));
    }
    node.run("LPUSH {3560}:queue a b c");
    browser.open(&format!("http://127.0.0.1:{}/", ports[0].port));
    let drawn =
        || browser.evaluate("Number(document.body.dataset.drawn ?? -1)").as_i64().filter(|turn| *turn > 1);
    eventually("the page is rendered a few times", drawn);

    assert_eq!(browser.element_text("#state"), "ready");
    let who = browser.element_text("#who");
    assert!(who.contains(&format!("port {}", node.port)) && who.contains("master, cluster"), "{who}");
    assert_eq!(browser.evaluate("document.querySelectorAll('#nodes tr').length"), 4);
    let nodes = browser.element_text("#nodes");
    assert!(nodes.contains("this node") && nodes.contains("5461"), "{nodes}");
    assert_eq!(nodes.matches("replica").count(), 1, "{nodes}");
    assert!(browser.element_text("#figures").contains("commands/s"));
    assert!(browser.element_text("#command-rows").contains("set"));
    assert!(browser.element_text("#slow").to_lowercase().contains("lpush"), "slow commands");
    let types = browser.element_text("#types");
    assert!(types.contains("string") && types.contains("list"), "{types}");
    assert!(
        browser.element_text("#patterns").contains("{*}:user:*"),
        "{}",
        browser.element_text("#patterns")
    );
    assert!(browser.element_text("#failover-list").contains("None"));

    // Use only the keyboard: focus the slot map, move in it, focus a chart, and pause.
    browser.press_keys("2");
    assert_eq!(browser.evaluate("document.activeElement.name"), "by");
    browser.evaluate("document.getElementById('map').focus()");
    browser.press_keys(&format!("{ARROW_RIGHT}{ARROW_DOWN}"));
    let slot = browser.element_text("#slot");
    assert!(slot.starts_with("Slot 129: served by 127.0.0.1:"), "{slot}");
    browser.press_keys("/");
    browser.press_keys("used_memory_peak");
    eventually("only that field is shown", || {
        let shown = browser.element_text("#info");
        (shown.contains("used_memory_peak") && !shown.contains("uptime")).then_some(())
    });
    browser.evaluate("document.activeElement.blur()");
    browser.press_keys("p");
    assert_eq!(browser.evaluate("document.getElementById('pause').getAttribute('aria-pressed')"), "true");
    browser.press_keys("p");
    // Selecting a node with Enter opens its slots.
    browser.press_keys(&format!("1{ENTER}"));
    eventually("a node is chosen", || {
        browser
            .evaluate("document.querySelectorAll('#nodes tr.chosen').length")
            .as_i64()
            .filter(|rows| *rows > 0)
    });
}

#[test]
fn dashboard_shows_failover_and_lost_server() {
    let Some(browser) = Browser::start() else { return };
    let (mut cluster, ports) = start_cluster();
    browser.open(&format!("http://127.0.0.1:{}/", ports[0].port));
    eventually("the page is rendered", || (browser.element_text("#state") == "ready").then_some(()));
    cluster.nodes[1].kill();
    eventually("the failover is reported", || {
        let told = browser.element_text("#failover-list");
        (told.contains("replaced") && told.contains("agreed to have failed") && told.contains("takes over"))
            .then_some(())
    });
    eventually("the failed node is marked", || {
        browser.element_text("#nodes").contains("failed").then_some(())
    });
    cluster.nodes[0].kill();
    eventually("the page shows that the server is gone", || {
        (browser.element_text("#state") == "not responding").then_some(())
    });
}
