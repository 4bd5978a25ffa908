//! The memory that clients can make a server keep: it is bounded, it is counted, and it is given back.

use harness::{Connection, Node, Program, eventually};

fn start(options: &str) -> (Node, Connection) {
    let node = Node::start(&Program::redoubt(), &format!("--save  {options}"));
    let operator = node.connect();
    (node, operator)
}

fn number(operator: &mut Connection, section: &str, field: &str) -> u64 {
    harness::info_field(operator, section, field).and_then(|text| text.parse().ok()).expect("INFO has it")
}

/// It asked for much, reads nothing and never sends again: nothing ever happens on its link.
#[test]
fn a_silent_client_is_cut_off_at_the_soft_limit() {
    let (node, mut operator) = start("--client-output-buffer-limit normal 0 1mb 1");
    operator.call(&["SET", "large", &"x".repeat(32 << 20)]).expect_ok();
    let mut slow = node.connect();
    slow.send(&["GET", "large"]).expect("sent");
    eventually("its reply waits", || operator.run("CLIENT LIST").text().contains(" cmd=get ").then_some(()));
    eventually("it is cut off", || {
        (number(&mut operator, "stats", "client_output_buffer_limit_disconnections") == 1).then_some(())
    });
    eventually("it is gone", || (number(&mut operator, "clients", "connected_clients") == 1).then_some(()));
}

/// A field is asked for thirty million times: the client is cut off when its reply is as long as may be.
#[test]
fn a_reply_is_bounded_while_it_is_made() {
    let (node, mut operator) = start("--client-output-buffer-limit normal 10mb 0 0");
    operator.run("HSET h field value");
    let mut greedy = node.connect();
    let reply = greedy.try_call(&["HRANDFIELD", "h", "-30000000"]);
    assert!(reply.is_err(), "{reply:?}");
    assert_eq!(number(&mut operator, "stats", "client_output_buffer_limit_disconnections"), 1);
    let peak = number(&mut operator, "memory", "used_memory_peak");
    assert!(peak < 64 << 20, "{peak}");
}

/// Requests of which a byte comes now and then take what was sent of them, and little more.
#[test]
fn dripping_clients_cost_little_and_leave_nothing_behind() {
    const CLIENTS: usize = 400;
    let (node, mut operator) = start("");
    let before = number(&mut operator, "memory", "used_memory");
    let mut clients: Vec<Connection> = (0..CLIENTS).map(|_| node.connect()).collect();
    for drop in ["*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$", "1", "0", "\r\n1234"] {
        for client in &mut clients {
            client.send_raw(drop.as_bytes()).expect("sent");
        }
        let sent = drop.len();
        eventually("all of it has come", || {
            let list = operator.run("CLIENT LIST").text();
            (list.lines().filter(|line| !line.contains(" qbuf=0 ")).count() >= CLIENTS).then_some(sent)
        });
    }
    let each = (number(&mut operator, "memory", "used_memory") - before) / CLIENTS as u64;
    assert!(each < 7000, "{each} bytes a client");
    drop(clients);
    eventually("all that they took is given back", || {
        (number(&mut operator, "memory", "used_memory") < before + (1 << 20)).then_some(())
    });
}

/// A request that is longer than may be kept ends its connection before it runs, and so does a transaction that is.
#[test]
fn what_may_be_kept_of_a_request_is_bounded() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let node = Node::start(&program, "--save  --client-query-buffer-limit 1mb");
        let mut operator = node.connect();
        let set =
            |length: usize| format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\n{}\r\n", "x".repeat(length));
        let fits = |wire: &str| {
            let mut client = node.connect();
            // The link breaks while much of it is on its way.
            let _ = client.send_raw(wire.as_bytes());
            client.read().is_ok_and(|reply| reply == harness::Value::Simple("OK".to_owned()))
                && client.try_call(&["PING"]).is_ok()
        };
        assert!(fits(&set(900_000)), "{}", program.name());
        for length in [1_100_000, 1_500_000, 2_000_000, 5_000_000] {
            assert!(!fits(&set(length)), "{}: {length}", program.name());
        }
        assert_eq!(operator.run("STRLEN k"), harness::Value::Int(900_000));
        let mut queues = node.connect();
        queues.run("MULTI").expect_ok();
        let _ = queues.send_raw(set(600_000).repeat(3).as_bytes());
        assert!(queues.read_to_end().is_ok_and(|said| !said.ends_with(b"+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n")));
    }
}

/// An operator looks for the clients that fill the memory: commands that wait for their EXEC are seen.
#[test]
fn what_a_transaction_queues_is_counted() {
    let (node, mut operator) = start("");
    let mut queuing = node.connect();
    queuing.run("MULTI").expect_ok();
    let before = number(&mut operator, "memory", "mem_clients_normal");
    for _ in 0..1000 {
        queuing.run("SET key 12345678");
    }
    let list = operator.run("CLIENT LIST").text();
    let field = |name: &str| -> u64 {
        let line = list.lines().find(|line| line.contains(" multi=1000 ")).expect("the client");
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)).expect("the field");
        value.parse().expect("a number")
    };
    let (queued, total) = (field("multi-mem="), field("tot-mem="));
    assert!((50_000..500_000).contains(&queued) && total > queued, "{queued} of {total}");
    assert!(number(&mut operator, "memory", "mem_clients_normal") >= before + queued);
    queuing.run("DISCARD").expect_ok();
    assert!(operator.run("CLIENT LIST").text().lines().all(|line| line.contains(" multi-mem=0 ")));
}
