//! Simulates client requests and their redirections.

use resp::Value;

use super::KeyGroup;
use crate::clients::CommandWords;

/// The number of redirections and retries after which a client gives up.
const MAX_ATTEMPTS: u8 = 8;

/// Commands of one slot that a client sends in sequence, each after the reply to the previous one. Every request is
/// followed by a write of a unique number, which is not included here.
#[derive(Debug, Clone)]
pub(crate) struct ClientRequest {
    pub(super) key_group: KeyGroup,
    /// The transactions and single commands that have not been executed yet.
    pub(super) transactions: Vec<Vec<CommandWords>>,
    /// Whether the client sends ASKING before the next command.
    pub(super) is_asking: bool,
    attempt_count: u8,
}

impl ClientRequest {
    pub(super) fn new(key_group: KeyGroup, transactions: Vec<Vec<CommandWords>>) -> Self {
        Self { key_group, transactions, is_asking: false, attempt_count: 0 }
    }

    /// Counts an attempt and returns whether the client may retry.
    pub(super) fn count_attempt(&mut self) -> bool {
        self.attempt_count += 1;
        self.attempt_count < MAX_ATTEMPTS
    }
}

/// What a client does when its request was not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextAttempt {
    /// Retries at another server, after ASKING if `asking` is set.
    Redirect { address: String, asking: bool },
    /// Retries at the same server.
    Retry,
    /// Retries at another server, chosen at random.
    RetryAnywhere,
}

/// Derives the client's next step from the replies to `sent_count` commands. Returns `None` if they were served; errors
/// that are not redirections count as replies.
pub(super) fn next_attempt(replies: &[Value], sent_count: usize) -> Option<NextAttempt> {
    let errors = replies.iter().filter_map(|reply| match reply {
        Value::Error(text) => Some(text.as_str()),
        _ => None,
    });
    errors
        .filter_map(next_attempt_after)
        .next()
        .or((replies.len() < sent_count).then_some(NextAttempt::Retry))
}

fn next_attempt_after(error: &str) -> Option<NextAttempt> {
    let mut words = error.split(' ');
    match words.next()? {
        word @ ("MOVED" | "ASK") => {
            Some(NextAttempt::Redirect { address: words.nth(1)?.to_owned(), asking: word == "ASK" })
        }
        "TRYAGAIN" => Some(NextAttempt::Retry),
        "CLUSTERDOWN" | "LOADING" | "READONLY" | "MASTERDOWN" | "MISCONF" => Some(NextAttempt::RetryAnywhere),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_follows_redirections_and_retries() {
        let error = |text: &str| Value::Error(text.to_owned());
        let done = || Value::Simple("OK".to_owned());
        let go = |asking| Some(NextAttempt::Redirect { address: "10.0.1.2:6379".to_owned(), asking });
        let table = [
            (vec![done()], 1, None),
            (vec![error("WRONGTYPE Operation against a key holding the wrong kind of value")], 1, None),
            (vec![done()], 2, Some(NextAttempt::Retry)),
            (vec![error("MOVED 7 10.0.1.2:6379")], 1, go(false)),
            (
                vec![done(), error("ASK 7 10.0.1.2:6379"), error("EXECABORT Transaction discarded")],
                3,
                go(true),
            ),
            (
                vec![error("TRYAGAIN Multiple keys request during rehashing of slot")],
                1,
                Some(NextAttempt::Retry),
            ),
            (vec![error("CLUSTERDOWN Hash slot not served")], 1, Some(NextAttempt::RetryAnywhere)),
        ];
        for (replies, sent, wanted) in table {
            assert_eq!(next_attempt(&replies, sent), wanted, "{replies:?}");
        }
    }

    #[test]
    fn client_gives_up_after_max_attempts() {
        let mut request = ClientRequest::new(7, Vec::new());
        assert!((1..MAX_ATTEMPTS).all(|_| request.count_attempt()) && !request.count_attempt());
    }
}
