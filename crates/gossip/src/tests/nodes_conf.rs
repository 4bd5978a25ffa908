//! Parsing of `nodes.conf`: files written by Redis, and corrupt files.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use slot_routing::{ClientTransport, Epoch, Slot};

use crate::{ClusterConfig, Gossip};

const REDIS_7_0_NODES_CONF: &str = "\
99cb0968f2c8ad88166327301e316267b2acc4a7 127.0.0.1:27003@37003 master - 0 1795249990994 3 connected 10923-16383
682a4b5ef8e804ea0760a8b55c5618c413389cd8 127.0.0.1:27001@37001,one.example myself,master - 0 0 1 connected 0-5459 5460 [7->-5a7c447d705c0e804da1dc53ca2c9f3242f23910]
5a7c447d705c0e804da1dc53ca2c9f3242f23910 127.0.0.1:27002@37002 slave,fail 99cb0968f2c8ad88166327301e316267b2acc4a7 0 1795249991795 2 disconnected
vars currentEpoch 3 lastVoteEpoch 2
";

fn restore(text: &str) -> Result<Gossip, String> {
    Gossip::restore(ClusterConfig::default(), ChaCha8Rng::seed_from_u64(1), text)
        .map_err(|error| error.to_string())
}

#[test]
fn nodes_conf_of_redis_is_parsed() {
    let gossip = restore(REDIS_7_0_NODES_CONF).unwrap();
    assert_eq!(gossip.id().as_str(), "682a4b5ef8e804ea0760a8b55c5618c413389cd8");
    assert_eq!((gossip.current_epoch(), gossip.last_vote_epoch()), (Epoch(3), Epoch(2)));
    assert_eq!(gossip.slot_owner(Slot::new(5460).unwrap()), Some(gossip.id()));
    let text = gossip.nodes_text(ClientTransport::default());
    assert!(
        text.contains(" slave,fail 99cb0968f2c8ad88166327301e316267b2acc4a7 0 0 3 disconnected\n"),
        "{text}"
    );
    assert!(text.contains(" 0-5460 [7->-5a7c447d705c0e804da1dc53ca2c9f3242f23910]\n"), "{text}");
}

#[test]
fn nodes_conf_round_trips() {
    let text = restore(REDIS_7_0_NODES_CONF).unwrap().nodes_conf();
    assert!(text.contains(",shard-id="));
    assert_eq!(restore(&text).unwrap().nodes_conf(), text);
}

#[test]
fn corrupt_files_are_rejected_with_the_line_number() {
    let id = "682a4b5ef8e804ea0760a8b55c5618c413389cd8";
    let mine = format!("{id} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected");
    let vars = "vars currentEpoch 3 lastVoteEpoch 2\n";
    // Columns: the lines of a file, the expected error
    let table = [
        (String::new(), "line 1: the last line is cut short".to_owned()),
        (vars.to_owned(), "line 1: no line is marked as myself".to_owned()),
        (format!("{mine}\nvars currentEpoch 3"), "line 2: the last line is cut short".to_owned()),
        (format!("{mine}\nvars currentEpoch\n"), "line 2: a variable without a value".to_owned()),
        (format!("{mine}\nvars currentEpoch x\n"), "line 2: 'x' is not an epoch".to_owned()),
        (format!("{mine}\n{mine}\n{vars}"), format!("line 2: node {id} occurs twice")),
        (format!("{mine} 16384\n{vars}"), "line 1: '16384' is not a slot".to_owned()),
        (format!("{mine} 1-x\n{vars}"), "line 1: 'x' is not a slot".to_owned()),
        (format!("{mine} [1->-abc]\n{vars}"), "line 1: 'abc' is not a node id".to_owned()),
        (format!("{mine} [1\n{vars}"), "line 1: '[1' is not a slot".to_owned()),
        ("garbage\n".to_owned(), "line 1: a node line needs at least eight fields".to_owned()),
        (
            mine.replace("7000@", "7000000@") + "\n",
            "line 1: '127.0.0.1:7000000@17000' is not an address".to_owned(),
        ),
        (mine.replace("master", "mister") + "\n", "line 1: unknown flag 'mister'".to_owned()),
        (mine.replace(" - ", " abc ") + "\n", "line 1: 'abc' is not a node id".to_owned()),
    ];
    for (text, error) in table {
        assert_eq!(restore(&text).err(), Some(error), "{text}");
    }
}

#[test]
fn last_line_needs_no_newline() {
    let whole = restore(REDIS_7_0_NODES_CONF).unwrap();
    let edited = restore(REDIS_7_0_NODES_CONF.trim_end()).unwrap();
    assert_eq!(edited.nodes_conf(), whole.nodes_conf());
    let other_order = REDIS_7_0_NODES_CONF
        .trim_end()
        .replace("currentEpoch 3 lastVoteEpoch 2", "lastVoteEpoch 2 currentEpoch 3");
    assert_eq!(restore(&other_order).unwrap().nodes_conf(), whole.nodes_conf());
}

#[test]
fn handshake_entries_in_nodes_conf_must_not_be_referenced() {
    let (me, shaken) =
        ("682a4b5ef8e804ea0760a8b55c5618c413389cd8", "5a7c447d705c0e804da1dc53ca2c9f3242f23910");
    let other = "99cb0968f2c8ad88166327301e316267b2acc4a7";
    let line = |id: &str, flags: &str, rest: &str| format!("{id} 127.0.0.1:7000@17000 {flags} {rest}\n");
    let vars = "vars currentEpoch 3 lastVoteEpoch 2\n";
    let alone = line(me, "myself,master", "- 0 0 1 connected");
    let met = line(shaken, "handshake", "- 0 0 0 connected");
    // A handshake that no other line refers to is dropped; the node will be met again.
    assert_eq!(restore(&format!("{alone}{met}{vars}")).unwrap().nodes().count(), 1);
    // Columns: the lines of a corrupt file, the expected error
    let table = [
        format!("{alone}{}", line(shaken, "handshake", "- 0 0 0 connected 0-100")),
        format!("{}{met}", line(me, "myself,master", &format!("- 0 0 1 connected 5 [5->-{shaken}]"))),
        format!("{alone}{met}{}", line(other, "slave", &format!("{shaken} 0 0 1 connected"))),
        line(shaken, "myself,handshake", "- 0 0 0 connected"),
    ];
    for lines in table {
        let error = restore(&format!("{lines}{vars}")).expect_err(&lines);
        assert!(
            error.ends_with(&format!(
                "node {shaken} is in handshake but is referenced by the cluster configuration"
            )),
            "{error}"
        );
    }
}

#[test]
fn truncated_files_are_rejected() {
    for end in 0..REDIS_7_0_NODES_CONF.len() {
        if let Ok(gossip) = restore(&REDIS_7_0_NODES_CONF[..end]) {
            // Truncation after a complete line, or of the final newline only, is accepted.
            assert!(REDIS_7_0_NODES_CONF[..end].ends_with('\n') || end + 1 == REDIS_7_0_NODES_CONF.len());
            assert_eq!(gossip.id().as_str(), "682a4b5ef8e804ea0760a8b55c5618c413389cd8");
        }
    }
}
