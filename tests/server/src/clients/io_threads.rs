//! The number of workers while the server runs (CONFIG SET io-threads).

use harness::{Connection, Node, Program, Value, eventually};

/// Connections by the thread that polls their sockets: which of the process's event loops knows how many.
fn threads(node: &Node) -> usize {
    let folder = format!("/proc/{}/task", node.pid());
    let names = std::fs::read_dir(folder).expect("the process is there").filter_map(|thread| {
        let name = std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()?;
        name.starts_with("worker-").then_some(name)
    });
    names.count()
}

fn set(operator: &mut Connection, count: usize) {
    operator.call(&["CONFIG", "SET", "io-threads", &count.to_string()]).expect_ok();
    assert_eq!(operator.run("CONFIG GET io-threads").items()[1].text(), count.to_string());
}

/// Processor time of each worker, by its number, in nanoseconds.
fn work(node: &Node) -> Vec<(String, u64)> {
    let folder = format!("/proc/{}/task", node.pid());
    let mut all: Vec<(String, u64)> = std::fs::read_dir(folder)
        .expect("the process is there")
        .filter_map(|thread| {
            let path = thread.ok()?.path();
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            let times = std::fs::read_to_string(path.join("schedstat")).ok()?;
            let number = name.trim().strip_prefix("worker-")?.to_owned();
            Some((number, times.split(' ').next()?.parse().ok()?))
        })
        .collect();
    all.sort();
    all
}

/// Which workers do something while every client is served once more.
fn who_serves(node: &Node, clients: &mut [Connection]) -> Vec<String> {
    let before = work(node);
    for client in clients.iter_mut() {
        for _ in 0..200 {
            assert_eq!(client.run("PING"), Value::Simple("PONG".into()));
        }
    }
    let spent = work(node).into_iter().map(|(number, nanos)| {
        let old = before.iter().find(|(known, _)| *known == number).map_or(0, |(_, nanos)| *nanos);
        (number, nanos - old)
    });
    let spent: Vec<(String, u64)> = spent.collect();
    let all: u64 = spent.iter().map(|(_, nanos)| nanos).sum();
    // An idle worker wakes up for a look now and then, at most.
    let busy = spent.into_iter().filter(|(_, nanos)| *nanos > all / 20);
    busy.map(|(number, _)| number).collect()
}

/// Clients that are connected already are served by the workers that are left, and later clients by new ones.
#[test]
fn workers_come_and_go_while_clients_are_served() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 1");
    assert_eq!(threads(&node), 2, "one serves and one stands by");
    let mut operator = node.connect();
    set(&mut operator, 4);
    assert_eq!(threads(&node), 5);
    let mut clients: Vec<Connection> = (0..8).map(|_| node.connect()).collect();
    eventually("four serve", || (who_serves(&node, &mut clients).len() == 4).then_some(()));
    let mut waiting = node.connect();
    waiting.send(&["BLPOP", "list", "0"]).expect("it reads");
    eventually("it waits", || (node.info("clients", "blocked_clients")? == "1").then_some(()));
    set(&mut operator, 1);
    clients.extend((0..4).map(|_| node.connect()));
    eventually("one serves all", || (who_serves(&node, &mut clients) == ["1"]).then_some(()));
    // One that waited where it cannot go on is served all the same, and goes elsewhere with that.
    operator.run("RPUSH list x");
    assert_eq!(waiting.read().expect("it is served").items()[1].text(), "x");
    assert_eq!(waiting.run("PING"), Value::Simple("PONG".into()));
    assert_eq!(threads(&node), 5, "threads that are not needed rest");
    set(&mut operator, 3);
    assert_eq!(threads(&node), 5);
    let mut later: Vec<Connection> = (0..6).map(|_| node.connect()).collect();
    eventually("three serve those who come now", || {
        let serving = who_serves(&node, &mut later);
        (serving == ["1", "2", "3"]).then_some(())
    });
}

/// A worker that was stood in for while a command kept it goes on with its own connections.
#[test]
fn a_worker_that_was_kept_gets_its_connections_back() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 4");
    let mut clients: Vec<Connection> = (0..8).map(|_| node.connect()).collect();
    let homes = |clients: &mut [Connection]| -> Vec<_> {
        clients.chunks_mut(1).map(|client| who_serves(&node, client)).collect()
    };
    let before = eventually("each is with one worker", || {
        Some(homes(&mut clients)).filter(|homes| homes.iter().all(|one| one.len() == 1))
    });
    for round in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            // Each is new, so nobody knows that it takes long.
            let script = format!("local x = {round}{number} for i = 1, 3000000 do x = x + i end return 1");
            assert_eq!(client.call(&["EVAL", &script, "0"]), Value::Int(1));
        }
    }
    eventually("each is where it was", || (homes(&mut clients) == before).then_some(()));
}

/// A client that counts while workers come and go gets each reply once and in order.
#[test]
fn nothing_is_lost_on_the_way_to_another_worker() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 2");
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let mut client = node.connect();
            std::thread::spawn(move || {
                let key = format!("counter:{number}");
                for expected in 1..=4000 {
                    assert_eq!(client.call(&["INCR", &key]), Value::Int(expected));
                }
            })
        })
        .collect();
    let mut operator = node.connect();
    for round in 0.. {
        if clients.iter().all(std::thread::JoinHandle::is_finished) {
            break;
        }
        set(&mut operator, [1, 4, 2, 6][round % 4]);
    }
    for client in clients {
        client.join().expect("every reply is the next number");
    }
}

/// A script that goes on for long keeps one worker; others are served although all but one have gone.
#[test]
fn a_busy_script_is_answered_for_when_there_is_but_one_worker() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 4 --busy-reply-threshold 50");
    let mut operator = node.connect();
    set(&mut operator, 1);
    let mut busy = node.connect();
    busy.send(&["EVAL", "while true do end", "0"]).expect("it reads");
    eventually("others hear that it is busy", || node.run("GET x").is_error("BUSY").then_some(()));
    set_free(&mut operator);
    assert!(busy.read().expect("an answer").is_error("ERR"));
    assert_eq!(node.run("PING"), Value::Simple("PONG".into()));
}

fn set_free(operator: &mut Connection) {
    eventually("it can be killed", || {
        (operator.run("SCRIPT KILL") == Value::Simple("OK".into())).then_some(())
    });
}
