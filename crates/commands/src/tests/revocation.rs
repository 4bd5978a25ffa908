//! Tests of clients that lose their permissions or are killed by another thread while they execute commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clock::Millis;
use engine::{CommandOrigin, CommandSet, ConnectionInfo, DispatchStatus, Engine, NoLog, Session};
use keyspace::Keyspace;

use crate::testing::run_buffer;

/// A server that several threads of a test share.
struct SharedServer {
    engine: Engine,
    commands: CommandSet,
}

impl SharedServer {
    fn new() -> Self {
        let registry = crate::server_registry();
        let engine = Engine::new(registry.catalogue(), Keyspace::new(1, 1), None, Box::new(NoLog));
        Self { engine, commands: CommandSet::new(registry) }
    }

    fn connect(&self) -> ServerClient<'_> {
        let client = self.engine.clients.connect(ConnectionInfo::default(), Millis(1), Box::new(|| {}));
        ServerClient { server: self, session: Session::for_client(client, CommandOrigin::Client, true) }
    }
}

/// A client that may run on another thread.
struct ServerClient<'s> {
    server: &'s SharedServer,
    session: Session,
}

impl ServerClient<'_> {
    /// Executes lines as one batch.
    fn run(&mut self, lines: &str) -> (DispatchStatus, String) {
        let SharedServer { engine, commands } = self.server;
        let (mut worker, buffer) = (engine.new_worker(|| 0), lines.as_bytes().to_vec());
        let (_, flow, out) =
            run_buffer(commands.dispatcher(engine), &mut worker, &mut self.session, Millis(1), buffer);
        (flow, String::from_utf8_lossy(&out).into_owned())
    }
}

/// Checks that a client executes nothing after the reply to the command that kills it or revokes its permissions.
/// Regression test: after CLIENT KILL had replied OK, the killed client's pipelined commands continued for up to 400
/// ms, which is a million writes.
fn check_nothing_executes_after_reply(build_command: impl Fn(u64) -> String) {
    let server = SharedServer::new();
    for round in 0..40 {
        let (id, began, counted) =
            (std::sync::mpsc::channel(), AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut victim = server.connect();
                let mut operator = server.connect();
                operator.run("acl setuser worker on nopass ~* &* +@all\n");
                assert_eq!(victim.run("auth worker x\n").1, "+OK\r\n");
                id.0.send(victim.session.id()).unwrap();
                let batch = "incr k\npublish c m\n".repeat(20_000);
                began.store(true, Ordering::Release);
                victim.run(&batch);
                // A killed client finishes its batch before it is disconnected. If the batch ended before the kill, the
                // client is still connected.
                while !counted.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                server.engine.disconnect(&mut victim.session);
                server.engine.disconnect(&mut operator.session);
            });
            let victim = id.1.recv().unwrap();
            let mut operator = server.connect();
            while !began.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let (_, said) = operator.run(&format!("{}\n", build_command(victim)));
            let (_, before) = operator.run("get k\n");
            thread::sleep(std::time::Duration::from_micros(500));
            let (_, after) = operator.run("get k\n");
            // Set the flag before any assertion can fail, because the other thread waits for it.
            counted.store(true, Ordering::Release);
            assert!(said.starts_with("+OK") || said.starts_with(":1"), "{said}");
            assert_eq!(before, after, "in round {round}");
            server.engine.disconnect(&mut operator.session);
        });
    }
}

#[test]
fn killed_client_executes_nothing_after_reply() {
    check_nothing_executes_after_reply(|victim| format!("client kill id {victim}"));
}

#[test]
fn deleted_user_executes_nothing_after_reply() {
    check_nothing_executes_after_reply(|_| "acl deluser worker".to_owned());
}

#[test]
fn revoked_permissions_are_unusable_after_setuser_replies() {
    check_nothing_executes_after_reply(|_| "acl setuser worker -@all".to_owned());
}

#[test]
fn clients_killing_each_other_do_not_deadlock() {
    let server = SharedServer::new();
    for _ in 0..200 {
        let (mut one, mut other) = (server.connect(), server.connect());
        let orders = [&one, &other].map(|client| {
            let id = client.session.id();
            format!("incr k\nmulti\nincr k\nclient kill id {id}\nexec\nacl setuser u on\nincr k\n")
        });
        thread::scope(|scope| {
            scope.spawn(|| one.run(&orders[1]));
            other.run(&orders[0]);
        });
        server.engine.disconnect(&mut one.session);
        server.engine.disconnect(&mut other.session);
    }
    assert!(!server.engine.settings.node_flags().contains(engine::NodeFlags::REVOKING));
}

#[test]
fn killed_client_is_not_listed() {
    let server = SharedServer::new();
    let (mut victim, mut operator) = (server.connect(), server.connect());
    victim.run("subscribe c\n");
    assert_eq!(victim.run("blpop list 0\n").0, DispatchStatus::Done, "a subscriber of version 2 may not");
    let id = victim.session.id();
    assert_eq!(operator.run("pubsub numsub c\n").1, "*2\r\n$1\r\nc\r\n:1\r\n");
    let (_, said) = operator
        .run(&format!("multi\nclient kill id {id}\nclient list id {id}\nexec\nclient kill id {id}\n"));
    assert!(said.ends_with("*2\r\n:1\r\n$0\r\n\r\n:0\r\n"), "{said}");
    assert_eq!(operator.run("pubsub numsub c\n").1, "*2\r\n$1\r\nc\r\n:0\r\n");
    assert_eq!(victim.run("incr k\n"), (DispatchStatus::Close, String::new()));
}
