//! A fuzz target that runs on the stable toolchain: requests and replies with bytes changed, dropped, doubled and
//! spliced, cut anywhere. Nothing may panic, and where the cuts fall must not matter. `FUZZ_SECONDS` says for how
//! long, `FUZZ_SEED` from where.

use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use resp::{Batch, Limits, Parser, ProtocolError, parse_value};

const REQUESTS: &[&[u8]] = &[
    b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
    b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5\r\nva\r\ne\r\n*1\r\n$4\r\nPING\r\n",
    b"*0\r\n*-1\r\n\r\nPING\r\n",
    b"SET \"a\\x41\\n b\" 'it\\'s'\r\nGET a\n",
    b"*1\r\n$0\r\n\r\n*1048576\r\n$3\r\nDEL\r\n",
    b"*1\r\n$536870912\r\nabc",
    b"*1000000000000\r\n$-1\r\n*1\r\n:1\r\n",
];

const REPLIES: &[&[u8]] = &[
    b"+OK\r\n-ERR no\r\n:-12\r\n$3\r\nabc\r\n$-1\r\n*-1\r\n",
    b"*2\r\n*1\r\n:1\r\n~1\r\n_\r\n",
    b"%1\r\n+key\r\n#t\r\n,1.5e10\r\n(123456789012345678901234567890\r\n",
    b"=7\r\ntxt:abc\r\n!5\r\nERR x\r\n>2\r\n+pubsub\r\n+message\r\n",
    b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    b"*1000000000\r\n$1000000000000\r\n%99999999999999999999\r\n",
];

#[test]
fn mutated_bytes_are_read_the_same_wherever_they_are_cut() {
    let setting = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let time = Duration::from_secs(setting("FUZZ_SECONDS", 2));
    let start = Instant::now();
    let mut seed = setting("FUZZ_SEED", 1);
    while start.elapsed() < time {
        println!("FUZZ_SEED={seed}");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..1000 {
            let bytes = mutated(&mut random, REQUESTS);
            let whole = parse(std::iter::once(bytes.as_slice()));
            let pieces = cut(&mut random, &bytes);
            assert_eq!(parse(pieces.into_iter()), whole, "\"{}\"", bytes.escape_ascii());
            check_reply(&mut random);
        }
        seed += 1;
    }
}

/// A reply that is whole at some length is not whole, and no other reply, at any shorter one.
fn check_reply(random: &mut ChaCha8Rng) {
    let bytes = mutated(random, REPLIES);
    let Ok(Some((value, length))) = parse_value(&bytes) else { return };
    assert!(length <= bytes.len());
    let shorter = random.random_range(0..length);
    assert_eq!(parse_value(&bytes[..shorter]), Ok(None), "\"{}\" at {shorter}", bytes.escape_ascii());
    assert_eq!(parse_value(&bytes[..length]), Ok(Some((value, length))));
}

/// One or two of the corpus, with up to ten changes.
fn mutated(random: &mut ChaCha8Rng, corpus: &[&[u8]]) -> Vec<u8> {
    let mut bytes = pick(random, corpus).to_vec();
    if random.random_ratio(1, 3) {
        bytes.extend_from_slice(pick(random, corpus));
    }
    for _ in 0..random.random_range(0..10) {
        if bytes.is_empty() {
            break;
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..6) {
            0 => bytes[at] = random.random(),
            1 => bytes[at] = *b"*$+-:\r\n0123456789\"'\\ ,#(!=~>%_".choose(random).expect("not empty"),
            2 => {
                bytes.remove(at);
            }
            3 => bytes.insert(at, bytes[at]),
            4 => bytes.truncate(at),
            _ => {
                let other = pick(random, corpus);
                let from = random.random_range(0..other.len());
                bytes.splice(at..at, other[from..].iter().copied());
            }
        }
    }
    bytes
}

fn pick<'a>(random: &mut ChaCha8Rng, corpus: &[&'a [u8]]) -> &'a [u8] {
    corpus.choose(random).expect("the corpus is not empty")
}

fn cut<'a>(random: &mut ChaCha8Rng, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(random.random_range(1..=bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// Reads as a connection does: what is consumed leaves the buffer, the next piece is appended.
fn parse<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut requests) = (Parser::new(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut batch = Batch::default();
        let parsed = parser.parse(&mut buffer, &mut batch, &Limits::default());
        for index in 0..batch.len() {
            requests.push(batch.args(index, &buffer).iter().map(<[u8]>::to_vec).collect());
        }
        if parsed.error.is_some() {
            return (requests, parsed.error);
        }
        buffer.drain(..parsed.consumed);
    }
    (requests, None)
}
