use proptest::prelude::*;

use super::*;

fn append_reply(output: &mut Output, text: &str) {
    output.buffer().extend_from_slice(text.as_bytes());
}

/// Appends a reply that is held until `offset` is committed.
fn append_held_reply(output: &mut Output, text: &str, offset: u64) {
    let from = output.mark();
    append_reply(output, text);
    output.hold_from(from, ReplOffset(offset));
}

/// Sends all sendable bytes and returns them.
fn send_all(output: &mut Output) -> String {
    let mut sent = Vec::new();
    while !output.sendable_bytes().is_empty() {
        sent.extend_from_slice(output.sendable_bytes());
        output.remove_sent(output.sendable_bytes().len());
    }
    String::from_utf8(sent).unwrap()
}

/// In a pipeline of a write, a read and a write, the reply to the read must not overtake the first reply.
#[test]
fn replies_are_sent_in_order_as_their_offsets_commit() {
    let mut output = Output::default();
    append_reply(&mut output, "a");
    append_held_reply(&mut output, "b", 10);
    append_reply(&mut output, "c");
    append_held_reply(&mut output, "d", 20);
    assert_eq!((send_all(&mut output).as_str(), output.first_held_offset()), ("a", Some(ReplOffset(10))));
    assert_eq!(output.len(), 3, "held bytes count");
    output.release_until(ReplOffset(9));
    assert_eq!(send_all(&mut output), "");
    output.release_until(ReplOffset(10));
    assert_eq!((send_all(&mut output).as_str(), output.first_held_offset()), ("bc", Some(ReplOffset(20))));
    append_reply(&mut output, "e");
    output.release_until(ReplOffset(25));
    assert_eq!((send_all(&mut output).as_str(), output.first_held_offset()), ("de", None));
    assert!(output.is_empty());
}

#[test]
fn one_commit_releases_all_earlier_holds() {
    let mut output = Output::default();
    for until in 1..=5 {
        append_held_reply(&mut output, "x", until);
    }
    output.release_until(ReplOffset(4));
    assert_eq!((send_all(&mut output).as_str(), output.first_held_offset()), ("xxxx", Some(ReplOffset(5))));
}

/// If two batches of reads follow an uncommitted write, both wait for the same offset, so one hold suffices.
#[test]
fn replies_with_the_same_offset_share_one_hold() {
    let mut output = Output::default();
    append_held_reply(&mut output, "a", 7);
    append_held_reply(&mut output, "b", 7);
    assert_eq!(output.holds.as_ref().unwrap().0.len(), 1);
    output.release_until(ReplOffset(7));
    assert_eq!(send_all(&mut output), "ab");
}

#[test]
fn write_without_reply_creates_no_hold() {
    let mut output = Output::default();
    append_held_reply(&mut output, "", 7);
    append_reply(&mut output, "a");
    assert_eq!(send_all(&mut output), "a");
}

/// A slow subscriber that never catches up must not retain the memory of bytes already sent.
#[test]
fn sent_bytes_are_freed_even_if_output_never_drains() {
    let mut output = Output::default();
    append_reply(&mut output, "behind");
    for _ in 0..10_000 {
        append_reply(&mut output, &"x".repeat(1000));
        output.remove_sent(1000);
        assert_eq!(output.len(), 6);
    }
    assert!(output.memory_bytes() < 64 * 1024, "{}", output.memory_bytes());
}

/// While WAIT blocks, earlier replies are sent. The mark where WAIT's own reply begins must stay valid.
#[test]
fn mark_stays_valid_while_earlier_bytes_are_sent() {
    let mut output = Output::default();
    append_reply(&mut output, "before");
    let mark = output.mark();
    assert_eq!(send_all(&mut output), "before");
    append_reply(&mut output, "own");
    assert_eq!(output.copy_since(mark), b"own".to_vec());
    output.discard_since(mark);
    assert!(output.is_empty() && output.mark() == mark);
}

#[derive(Debug, Clone)]
enum OutputStep {
    Reply { len: usize },
    HeldReply { len: usize, offset_increase: u64 },
    Commit { offset_increase: u64 },
    Send { max_bytes: usize },
}

fn random_steps() -> impl Strategy<Value = Vec<OutputStep>> {
    let step = prop_oneof![
        (0..40_000_usize).prop_map(|len| OutputStep::Reply { len }),
        (0..40_000_usize, 0..3_u64)
            .prop_map(|(len, more)| OutputStep::HeldReply { len, offset_increase: more }),
        (0..3_u64).prop_map(|more| OutputStep::Commit { offset_increase: more }),
        (0..60_000_usize).prop_map(|most| OutputStep::Send { max_bytes: most }),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Compares with a naive model that stores the required offset for each byte.
    #[test]
    fn output_matches_a_naive_model(steps in random_steps()) {
        let (mut output, mut model) = (Output::default(), VecDeque::<(u8, ReplOffset)>::new());
        let (mut written, mut committed, mut next) = (ReplOffset(0), ReplOffset(0), 0_u8);
        for step in steps {
            let mut write = |output: &mut Output, len: usize, until: ReplOffset| {
                let from = output.mark();
                for _ in 0..len {
                    next = next.wrapping_add(1);
                    output.buffer().push(next);
                    model.push_back((next, until));
                }
                if until > committed {
                    output.hold_from(from, until);
                }
            };
            match step {
                OutputStep::Reply { len } => write(&mut output, len, ReplOffset(0)),
                OutputStep::HeldReply { len, offset_increase } => {
                    written.0 += offset_increase;
                    write(&mut output, len, written);
                }
                OutputStep::Commit { offset_increase } => {
                    committed.0 = (committed.0 + offset_increase).min(written.0);
                    output.release_until(committed);
                }
                OutputStep::Send { max_bytes } => {
                    let may = model.iter().position(|(_, until)| *until > committed).unwrap_or(model.len());
                    let mut left = max_bytes;
                    while left > 0 && !output.sendable_bytes().is_empty() {
                        let sent = output.sendable_bytes().len().min(left);
                        let expected: Vec<u8> = model.drain(..sent).map(|(byte, _)| byte).collect();
                        prop_assert_eq!(&output.sendable_bytes()[..sent], expected.as_slice());
                        output.remove_sent(sent);
                        left -= sent;
                    }
                    prop_assert_eq!(max_bytes - left, may.min(max_bytes));
                }
            }
            prop_assert_eq!(output.len(), model.len());
            prop_assert_eq!(output.is_empty(), model.is_empty());
            let first = model.iter().map(|(_, until)| *until).find(|until| *until > committed);
            prop_assert_eq!(output.first_held_offset(), first);
        }
    }
}
