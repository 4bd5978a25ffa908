//! Clients' requests, and where their answers send them.

use resp::Value;

use super::Key;
use crate::clients::Words;

/// A client that has been sent on or put off so often gives up.
const TRIES: u8 = 8;

/// Commands of one slot that a client sends one after the other, each once the one before is answered. The last writes
/// the slot's number, and is not among these.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(super) key: Key,
    /// Each alone, or a transaction.
    pub(super) units: Vec<Vec<Words>>,
    /// ASKING goes before the next.
    pub(super) asking: bool,
    tries: u8,
}

impl Request {
    pub(super) fn new(key: Key, units: Vec<Vec<Words>>) -> Self {
        Self { key, units, asking: false, tries: 0 }
    }

    /// Whether the client tries once more.
    pub(super) fn tries_again(&mut self) -> bool {
        self.tries += 1;
        self.tries < TRIES
    }
}

/// The next step of a client that was not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// It goes to another server, with ASKING if that is said.
    Go { address: String, asking: bool },
    /// It tries again here.
    Stay,
    /// It tries any other.
    Elsewhere,
}

/// The step that follows from the replies to so many commands; nothing if they have been served. Any other error is an answer.
pub(super) fn next(replies: &[Value], sent: usize) -> Option<Next> {
    let errors = replies.iter().filter_map(|reply| match reply {
        Value::Error(text) => Some(text.as_str()),
        _ => None,
    });
    errors.filter_map(next_after).next().or((replies.len() < sent).then_some(Next::Stay))
}

fn next_after(error: &str) -> Option<Next> {
    let mut words = error.split(' ');
    match words.next()? {
        word @ ("MOVED" | "ASK") => {
            Some(Next::Go { address: words.nth(1)?.to_owned(), asking: word == "ASK" })
        }
        "TRYAGAIN" => Some(Next::Stay),
        "CLUSTERDOWN" | "LOADING" | "READONLY" | "MASTERDOWN" | "MISCONF" => Some(Next::Elsewhere),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_does_after_its_answers() {
        let error = |text: &str| Value::Error(text.to_owned());
        let done = || Value::Simple("OK".to_owned());
        let go = |asking| Some(Next::Go { address: "10.0.1.2:6379".to_owned(), asking });
        let table = [
            (vec![done()], 1, None),
            (vec![error("WRONGTYPE Operation against a key holding the wrong kind of value")], 1, None),
            (vec![done()], 2, Some(Next::Stay)),
            (vec![error("MOVED 7 10.0.1.2:6379")], 1, go(false)),
            (
                vec![done(), error("ASK 7 10.0.1.2:6379"), error("EXECABORT Transaction discarded")],
                3,
                go(true),
            ),
            (vec![error("TRYAGAIN Multiple keys request during rehashing of slot")], 1, Some(Next::Stay)),
            (vec![error("CLUSTERDOWN Hash slot not served")], 1, Some(Next::Elsewhere)),
        ];
        for (replies, sent, wanted) in table {
            assert_eq!(next(&replies, sent), wanted, "{replies:?}");
        }
    }

    #[test]
    fn a_client_gives_up_in_the_end() {
        let mut request = Request::new(7, Vec::new());
        assert!((1..TRIES).all(|_| request.tries_again()) && !request.tries_again());
    }
}
