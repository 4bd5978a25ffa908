//! Every command of the table, on the server under test and on a real Redis.
//!
//! `DIFFERENTIAL_SEEDS` and `DIFFERENTIAL_FIRST_SEED` make the run longer or another one.

use std::collections::BTreeMap;

use differential::{Generator, Grammar, Pair, Peer, Protocol};
use harness::Program;

const LENGTH: usize = 300;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs the seeds; differences are shrunk, and the shortest for each command is reported.
fn replies_are_equal(protocol: Protocol, peer: Peer) {
    let Some(theirs) = peer.program() else { return };
    let mut pair = Pair::start(&Program::redoubt(), &theirs);
    if peer == Peer::Valkey {
        pair = pair.without_digests();
    }
    let grammar = Grammar::of(peer);
    let payloads = pair.payloads();
    let first = setting("DIFFERENTIAL_FIRST_SEED", 1);
    let mut found: BTreeMap<String, (u64, differential::Difference)> = BTreeMap::new();
    for seed in first..first + setting("DIFFERENTIAL_SEEDS", 335) {
        let commands = Generator::new(&grammar, &payloads, seed).sequence(LENGTH);
        let Some(difference) = pair.compare(protocol, &commands) else { continue };
        let Some(short) = pair.shrink(protocol, &difference) else { continue };
        let name = String::from_utf8_lossy(&short.command()[0]).to_uppercase();
        let shorter = found.get(&name).is_none_or(|(_, known)| known.commands.len() > short.commands.len());
        if shorter {
            found.insert(name, (seed, short));
        }
    }
    let report: Vec<String> = found
        .values()
        .map(|(seed, difference)| format!("seed {seed}, {protocol:?}:\n{difference}"))
        .collect();
    assert!(report.is_empty(), "replies differ from {peer:?}:\n{}", report.join("\n"));
}

#[test]
fn replies_in_resp2_are_those_of_redis() {
    replies_are_equal(Protocol::V2, Peer::Redis);
}

#[test]
fn replies_in_resp3_are_those_of_redis() {
    replies_are_equal(Protocol::V3, Peer::Redis);
}

#[test]
fn replies_to_newer_commands_are_those_of_valkey() {
    replies_are_equal(Protocol::V2, Peer::Valkey);
    replies_are_equal(Protocol::V3, Peer::Valkey);
}

/// What is no RESP is answered with the same words, and the link is closed.
#[test]
fn malformed_requests_are_answered_as_redis_does() {
    let pair = Pair::start(&Program::redoubt(), &Program::redis());
    let inputs: &[&[u8]] = &[
        b"PING\r\n",
        b"PING\n",
        b"  PING  \r\n",
        b"\r\n\r\nPING\r\n",
        b"SET \"a b\" 'c d'\r\nGET \"a b\"\r\n",
        b"SET \"\\x41\\n\" 1\r\nGET \"A\\n\"\r\n",
        b"GET \"unbalanced\r\n",
        b"GET 'a'b\r\n",
        b"*0\r\nPING\r\n",
        b"*-1\r\nPING\r\n",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI",
        b"*x\r\n",
        b"*1048577\r\n",
        b"*2147483648\r\n",
        b"*1\r\n+PING\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$1000000000000\r\n",
        b"*2\r\n$3\r\nGET\r\n$536870913\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n",
        b"$4\r\nPING\r\n",
        b"+OK\r\n",
        b"*1\r\n$0\r\n\r\nPING\r\n",
        b"GET\r\n",
        b"nosuch a b\r\n",
        b"\x00\x01\x02\xff\xfe\r\n",
        b"POST / HTTP/1.1\r\n",
        b"Host: example\r\n",
        b"QUIT\r\nPING\r\n",
        b"*1\r\n$4\r\nQUIT\r\n",
    ];
    let mut report = Vec::new();
    for input in inputs {
        let (ours, theirs) = pair.raw(input).expect("both close the link");
        if ours != theirs {
            report.push(format!(
                "\"{}\":\n    here   \"{}\"\n    Redis  \"{}\"",
                input.escape_ascii(),
                ours.escape_ascii(),
                theirs.escape_ascii()
            ));
        }
    }
    assert!(report.is_empty(), "answers differ from Redis:\n{}", report.join("\n"));
}
