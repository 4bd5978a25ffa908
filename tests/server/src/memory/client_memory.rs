//! Tests of the memory that clients use: it is limited, reported and released.

use harness::{Connection, Node, Program, eventually};

fn start_with_operator(options: &str) -> (Node, Connection) {
    let node = Node::start(&Program::redoubt(), &format!("--save  {options}"));
    let operator = node.connect();
    (node, operator)
}

fn info_number(operator: &mut Connection, section: &str, field: &str) -> u64 {
    harness::info_field(operator, section, field).and_then(|text| text.parse().ok()).expect("INFO has it")
}

/// The client requests much data, reads nothing and sends nothing more, so no socket event ever triggers the check of
/// its limit.
#[test]
fn idle_client_is_disconnected_at_the_soft_limit() {
    let (node, mut operator) = start_with_operator("--client-output-buffer-limit normal 0 1mb 1");
    operator.call(&["SET", "large", &"x".repeat(32 << 20)]).expect_ok();
    let mut slow = node.connect();
    slow.send(&["GET", "large"]).expect("sent");
    eventually("the reply is buffered", || {
        operator.call_line("CLIENT LIST").text().contains(" cmd=get ").then_some(())
    });
    eventually("the client is disconnected", || {
        (info_number(&mut operator, "stats", "client_output_buffer_limit_disconnections") == 1).then_some(())
    });
    eventually("the client is removed", || {
        (info_number(&mut operator, "clients", "connected_clients") == 1).then_some(())
    });
}

/// The command requests 30 million random fields; the client is disconnected when its reply exceeds the output buffer
/// limit.
#[test]
fn reply_size_is_limited_while_the_command_runs() {
    let (node, mut operator) = start_with_operator("--client-output-buffer-limit normal 10mb 0 0");
    operator.call_line("HSET h field value");
    let mut greedy = node.connect();
    let reply = greedy.try_call(&["HRANDFIELD", "h", "-30000000"]);
    assert!(reply.is_err(), "{reply:?}");
    assert_eq!(info_number(&mut operator, "stats", "client_output_buffer_limit_disconnections"), 1);
    let peak = info_number(&mut operator, "memory", "used_memory_peak");
    assert!(peak < 64 << 20, "{peak}");
}

/// Incomplete requests that arrive slowly must use little more memory than the bytes received.
#[test]
fn slow_senders_use_little_memory() {
    const CLIENT_COUNT: usize = 400;
    let (node, mut operator) = start_with_operator("");
    let before = info_number(&mut operator, "memory", "used_memory");
    let mut clients: Vec<Connection> = (0..CLIENT_COUNT).map(|_| node.connect()).collect();
    for drop in ["*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$", "1", "0", "\r\n1234"] {
        for client in &mut clients {
            client.send_raw(drop.as_bytes()).expect("sent");
        }
        let sent = drop.len();
        eventually("all bytes have arrived", || {
            let list = operator.call_line("CLIENT LIST").text();
            (list.lines().filter(|line| !line.contains(" qbuf=0 ")).count() >= CLIENT_COUNT).then_some(sent)
        });
    }
    let each = (info_number(&mut operator, "memory", "used_memory") - before) / CLIENT_COUNT as u64;
    assert!(each < 7000, "{each} bytes a client");
    drop(clients);
    eventually("all memory of the clients is released", || {
        (info_number(&mut operator, "memory", "used_memory") < before + (1 << 20)).then_some(())
    });
}

/// A request or a transaction longer than the query buffer limit is refused before it runs, and the connection is
/// closed.
#[test]
fn query_buffer_limit_closes_the_connection() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let node = Node::start(&program, "--save  --client-query-buffer-limit 1mb");
        let mut operator = node.connect();
        let set =
            |length: usize| format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\n{}\r\n", "x".repeat(length));
        let fits = |wire: &str| {
            let mut client = node.connect();
            // The server may close the connection while the client still sends.
            let _ = client.send_raw(wire.as_bytes());
            client.read().is_ok_and(|reply| reply == harness::Reply::Simple("OK".to_owned()))
                && client.try_call(&["PING"]).is_ok()
        };
        assert!(fits(&set(900_000)), "{}", program.name());
        for length in [1_100_000, 1_500_000, 2_000_000, 5_000_000] {
            assert!(!fits(&set(length)), "{}: {length}", program.name());
        }
        assert_eq!(operator.call_line("STRLEN k"), harness::Reply::Int(900_000));
        let mut queues = node.connect();
        queues.call_line("MULTI").expect_ok();
        let _ = queues.send_raw(set(600_000).repeat(3).as_bytes());
        assert!(queues.read_to_end().is_ok_and(|said| !said.ends_with(b"+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n")));
    }
}

/// CLIENT LIST reports the memory of queued transaction commands.
#[test]
fn queued_commands_are_counted_as_client_memory() {
    let (node, mut operator) = start_with_operator("");
    let mut queuing = node.connect();
    queuing.call_line("MULTI").expect_ok();
    let before = info_number(&mut operator, "memory", "mem_clients_normal");
    for _ in 0..1000 {
        queuing.call_line("SET key 12345678");
    }
    let list = operator.call_line("CLIENT LIST").text();
    let field = |name: &str| -> u64 {
        let line = list.lines().find(|line| line.contains(" multi=1000 ")).expect("the client");
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)).expect("the field");
        value.parse().expect("a number")
    };
    let (queued, total) = (field("multi-mem="), field("tot-mem="));
    assert!((50_000..500_000).contains(&queued) && total > queued, "{queued} of {total}");
    assert!(info_number(&mut operator, "memory", "mem_clients_normal") >= before + queued);
    queuing.call_line("DISCARD").expect_ok();
    assert!(operator.call_line("CLIENT LIST").text().lines().all(|line| line.contains(" multi-mem=0 ")));
}
