//! Clients that lose their rights, or are killed, by another thread while they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clock::Millis;
use engine::{Engine, Flow, Link, NoLog, Origin, Requests, Session};
use keyspace::Keyspace;
use resp::{Batch, Limits, Parser};

struct Connected<'e> {
    engine: &'e Engine,
    session: Session,
}

impl<'e> Connected<'e> {
    fn new(engine: &'e Engine) -> Self {
        let client = engine.clients.connect(Link::default(), Millis(1), Box::new(|| {}));
        Self { engine, session: Session::of(client, Origin::Client, true) }
    }

    /// Runs lines as they come in one read.
    fn run(&mut self, lines: &str) -> (Flow, String) {
        let (mut buffer, mut batch, mut out) = (lines.as_bytes().to_vec(), Batch::default(), Vec::new());
        Parser::new().parse(&mut buffer, &mut batch, &Limits::default());
        let requests = Requests { buffer: &buffer, batch: &batch, from: 0 };
        let mut worker = self.engine.worker(|| 0);
        let (_, flow) = self.engine.run(&mut worker, &mut self.session, Millis(1), requests, &mut out);
        (flow, String::from_utf8_lossy(&out).into_owned())
    }
}

/// The story: an operator ends a client that writes, hears OK, and counts. What the client had pipelined ran on for up
/// to 400 ms, a million writes of it.
fn nothing_runs_after_ok(order: impl Fn(u64) -> String) {
    let engine = Engine::new(crate::of_server(), Keyspace::new(1, 1), None, Box::new(NoLog));
    for round in 0..40 {
        let (id, began, counted) =
            (std::sync::mpsc::channel(), AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut victim = Connected::new(&engine);
                let mut operator = Connected::new(&engine);
                operator.run("acl setuser worker on nopass ~* &* +@all\n");
                assert_eq!(victim.run("auth worker x\n").1, "+OK\r\n");
                id.0.send(victim.session.id).unwrap();
                let batch = "incr k\npublish c m\n".repeat(20_000);
                began.store(true, Ordering::Release);
                victim.run(&batch);
                // A client that was killed comes to the end of its batch before it is disconnected; one that was faster than
                // the order stays to be found.
                while !counted.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                engine.disconnect(&mut victim.session);
                engine.disconnect(&mut operator.session);
            });
            let victim = id.1.recv().unwrap();
            let mut operator = Connected::new(&engine);
            while !began.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let (_, said) = operator.run(&format!("{}\n", order(victim)));
            let (_, before) = operator.run("get k\n");
            thread::sleep(std::time::Duration::from_micros(500));
            let (_, after) = operator.run("get k\n");
            // Before any assertion, since the other thread waits for it.
            counted.store(true, Ordering::Release);
            assert!(said.starts_with("+OK") || said.starts_with(":1"), "{said}");
            assert_eq!(before, after, "in round {round}");
            engine.disconnect(&mut operator.session);
        });
    }
}

#[test]
fn a_killed_client_runs_nothing_after_the_ok() {
    nothing_runs_after_ok(|victim| format!("client kill id {victim}"));
}

#[test]
fn who_is_deleted_runs_nothing_after_the_ok() {
    nothing_runs_after_ok(|_| "acl deluser worker".to_owned());
}

#[test]
fn who_loses_rights_uses_them_no_more_after_the_ok() {
    nothing_runs_after_ok(|_| "acl setuser worker -@all".to_owned());
}

#[test]
fn clients_that_kill_each_other_do_not_wait_for_each_other() {
    let engine = Arc::new(Engine::new(crate::of_server(), Keyspace::new(1, 1), None, Box::new(NoLog)));
    for _ in 0..200 {
        let (mut one, mut other) = (Connected::new(&engine), Connected::new(&engine));
        let orders = [&one, &other].map(|client| {
            let id = client.session.id;
            format!("incr k\nmulti\nincr k\nclient kill id {id}\nexec\nacl setuser u on\nincr k\n")
        });
        thread::scope(|scope| {
            scope.spawn(|| one.run(&orders[1]));
            other.run(&orders[0]);
        });
        engine.disconnect(&mut one.session);
        engine.disconnect(&mut other.session);
    }
    assert!(!engine.settings.gate().contains(engine::Gate::REVOKING));
}

#[test]
fn a_killed_client_is_seen_by_nobody() {
    let engine = Engine::new(crate::of_server(), Keyspace::new(1, 1), None, Box::new(NoLog));
    let (mut victim, mut operator) = (Connected::new(&engine), Connected::new(&engine));
    victim.run("subscribe c\n");
    assert_eq!(victim.run("blpop list 0\n").0, Flow::Done, "a subscriber of version 2 may not");
    let id = victim.session.id;
    assert_eq!(operator.run("pubsub numsub c\n").1, "*2\r\n$1\r\nc\r\n:1\r\n");
    let (_, said) = operator
        .run(&format!("multi\nclient kill id {id}\nclient list id {id}\nexec\nclient kill id {id}\n"));
    assert!(said.ends_with("*2\r\n:1\r\n$0\r\n\r\n:0\r\n"), "{said}");
    assert_eq!(operator.run("pubsub numsub c\n").1, "*2\r\n$1\r\nc\r\n:0\r\n");
    assert_eq!(victim.run("incr k\n"), (Flow::Close, String::new()));
}
