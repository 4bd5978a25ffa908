//! Keys that are due.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Node, Program, Value, eventually};

/// The longest wait of a client: some hundred times the duration when nothing else runs.
const LONGEST: Duration = Duration::from_secs(1);

#[test]
fn very_many_keys_due_at_once_make_nobody_wait() {
    const KEYS: usize = 200_000;
    let node = Node::start(&Program::redoubt(), "--save  --appendonly no --enable-debug-command yes");
    node.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
    let mut connection = node.connect();
    for start in (0..KEYS).step_by(1000) {
        for key in start..start + 1000 {
            connection
                .send(&["SET", &format!("key:{key}"), "value", "PX", "1"])
                .expect("the server takes it");
        }
        (0..1000).for_each(|_| connection.read().expect("the server answers").expect_ok());
    }
    node.run("SET stays value").expect_ok();
    assert_eq!(node.run("DBSIZE"), Value::Int(KEYS as i64 + 1));
    let (stop, mut prober) = (Arc::new(AtomicBool::new(false)), node.connect());
    let told = stop.clone();
    let probing = std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !told.load(Ordering::Relaxed) {
            let start = Instant::now();
            assert_eq!(prober.run("GET stays").text(), "value");
            longest = longest.max(start.elapsed());
        }
        longest
    });
    node.run("DEBUG SET-ACTIVE-EXPIRE 1").expect_ok();
    eventually("all of them are gone", || (node.run("DBSIZE") == Value::Int(1)).then_some(()));
    stop.store(true, Ordering::Relaxed);
    let longest = probing.join().expect("the server answers");
    assert!(longest < LONGEST, "a client waited {longest:?}");
    assert_eq!(node.info("stats", "expired_keys"), Some(KEYS.to_string()));
}
