//! A master without cluster mode that comes back without its data, while sentinels watch it.
//!
//! A supervisor starts a dead process again before the sentinels have missed it. If nothing of its data was on disk,
//! its replicas would copy the nothing. Within the protocols of Redis the sentinels can be told: a master that answers
//! PING with an error is down to them, and they have a replica promoted. So a master that has replicas, and that
//! sentinels watch, keeps a small file that says so ([`Followers`]); one that starts with that file and without a
//! single key waits ([`EmptyMaster`]): it neither serves nor lets anybody copy, and answers sentinels' pings with an
//! error.
//!
//! Sentinels name the master, as they know it, in the hello messages that they publish on every server. Once they name
//! another, their pings are answered as usual: a sentinel makes a replica only of a server that is not down. If two
//! masters have lost their data, sentinels would name the one and the other in turn for ever: one that has been named
//! again and again stays down to them until they name a third.
//!
//! | what happens | what the master does |
//! | --- | --- |
//! | sentinels name another master | answers their pings; they will have it follow |
//! | REPLICAOF | follows, and copies |
//! | REPLICAOF NO ONE from a sentinel | refuses: it cannot reach the others just now, and this one has nothing |
//! | REPLICAOF NO ONE from anybody else | serves the nothing: an operator's word |
//! | `empty-master-timeout` has passed | the same: nobody could be promoted |
//!
//! Invariant: before one of the last three nobody copies from it.

use std::time::Duration;

use clock::Instant;

use crate::id::ReplId;

const HISTORY: &str = "history";
const OWN: &str = "master";
const REPLICA: &str = "replica";

/// A host and a port under which a server is known.
pub type Name = (String, u16);

/// The record that a master keeps of its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followers {
    /// The history that they have of it.
    pub history: ReplId,
    /// Under which name sentinels know this server, if they have named it.
    pub own: Option<Name>,
    /// Where they are reached.
    pub replicas: Vec<Name>,
}

impl Followers {
    /// The file's text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{HISTORY} {}\n", self.history);
        if let Some((host, port)) = &self.own {
            text += &format!("{OWN} {host} {port}\n");
        }
        for (host, port) in &self.replicas {
            text += &format!("{REPLICA} {host} {port}\n");
        }
        text
    }

    /// Reads it. What makes no sense is passed over: that there is a file says the most.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found = Self { history: ReplId::NONE, own: None, replicas: Vec::new() };
        for line in text.lines() {
            match line.split_ascii_whitespace().collect::<Vec<_>>().as_slice() {
                [HISTORY, id] => found.history = ReplId::parse(id.as_bytes()).unwrap_or(found.history),
                [OWN, host, port] => {
                    found.own = port.parse().ok().map(|port| ((*host).to_owned(), port));
                }
                [REPLICA, host, port] => {
                    found.replicas.extend(port.parse().ok().map(|port| ((*host).to_owned(), port)));
                }
                _ => {}
            }
        }
        found
    }
}

/// Whether a master keeps the file. It is forgotten once there has been no replica for as long as a master without data
/// would wait for one.
#[derive(Debug, Clone, Default)]
pub struct Keeping {
    seen: Option<(Instant, Vec<Name>)>,
    /// The master that a sentinel named with the newest epoch, while this server was a master.
    named: Option<(u64, Name)>,
}

impl Keeping {
    /// Begins with the replicas that the file named at the start; `None` if there was no file.
    #[must_use]
    pub fn since_start(now: Instant, replicas: Option<Vec<Name>>) -> Self {
        Self { seen: replicas.map(|replicas| (now, replicas)), named: None }
    }

    /// A sentinel greets a master, and names the master that it knows.
    pub fn on_hello(&mut self, payload: &[u8]) {
        if let Some((named, epoch)) = named_in(payload)
            && self.named.as_ref().is_none_or(|(newest, _)| epoch >= *newest)
        {
            self.named = Some((epoch, named));
        }
    }

    /// This server was told to be a master: a sentinel that promotes it named another until then, also to one that has
    /// been a master all the time, by an older word.
    pub fn on_promoted(&mut self) {
        self.named = None;
    }

    /// Under which name sentinels know this master.
    #[must_use]
    pub fn own(&self) -> Option<&Name> {
        let replicas = self.seen.as_ref().map(|(_, replicas)| replicas);
        let is_replica = |name: &&Name| replicas.is_some_and(|replicas| replicas.contains(name));
        self.named.as_ref().map(|(_, name)| name).filter(|name| !is_replica(name))
    }

    /// Returns the replicas to be kept at `now`. `replicas` are those of a master that sentinels watch. From any other
    /// server nothing is learned: one that follows another may start as a master again, if its configuration does not
    /// say so.
    pub fn look(&mut self, now: Instant, replicas: Option<Vec<Name>>, timeout: Duration) -> Option<&[Name]> {
        match replicas {
            None => {
                self.named = None;
                self.seen.iter_mut().for_each(|(at, _)| *at = now);
            }
            Some(replicas) if !replicas.is_empty() => self.seen = Some((now, replicas)),
            Some(_) => {}
        }
        self.seen.take_if(|(at, _)| now.since(*at) >= timeout);
        self.seen.as_ref().map(|(_, replicas)| replicas.as_slice())
    }
}

/// A master that waits until a replica has taken its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmptyMaster {
    followers: Followers,
    until: Instant,
    /// The newest epoch under which a sentinel named a master, and whether that is another.
    newest: u64,
    replaced: bool,
    /// The master that was named last, if it is another, and those after which this one was named again.
    successor: Option<Name>,
    failed: Vec<Name>,
}

/// A successor after which this master was named so often is none.
const TOO_OFTEN: usize = 2;
/// No group of sentinels names more successors in vain.
const MOST_FAILED: usize = 64;

impl EmptyMaster {
    /// Begins to wait, for `timeout` at the longest.
    #[must_use]
    pub fn new(followers: Followers, now: Instant, timeout: Duration) -> Self {
        let (successor, failed) = (None, Vec::new());
        Self { followers, until: now + timeout, newest: 0, replaced: false, successor, failed }
    }

    /// A sentinel greets, and names the master that it knows:
    /// `ip,port,runid,epoch,name,master ip,master port,master epoch`. Says whether it is news that this is another.
    /// `ports` are those of this server.
    ///
    /// That it is another is sure if it is one of the replicas, if it has a port that this server has not, or if it is
    /// not the one named while this server was the master. An address alone says nothing: this server may be known by
    /// several. A sentinel that was away names the master that it knew: only the newest epoch counts.
    pub fn on_hello(&mut self, payload: &[u8], ports: &[u16]) -> bool {
        let Some((named, epoch)) = named_in(payload).filter(|(_, epoch)| *epoch >= self.newest) else {
            return false;
        };
        self.newest = epoch;
        let other = self.followers.replicas.contains(&named)
            || !ports.contains(&named.1)
            || self.followers.own.as_ref().is_some_and(|own| *own != named);
        let replaced = other && self.failed.iter().filter(|failed| **failed == named).count() < TOO_OFTEN;
        if other {
            self.successor = Some(named);
        } else if self.failed.len() < MOST_FAILED {
            self.failed.extend(self.successor.take());
        }
        let before = std::mem::replace(&mut self.replaced, replaced);
        replaced && !before
    }

    /// Whether sentinels are to hold this server for down.
    #[must_use]
    pub fn is_down_to_sentinels(&self) -> bool {
        !self.replaced
    }

    /// Whether it has waited long enough.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }
}

/// The master, and the epoch of that.
fn named_in(payload: &[u8]) -> Option<(Name, u64)> {
    let words: Vec<&str> = std::str::from_utf8(payload).ok()?.split(',').collect();
    let [_, _, _, _, _, host, port, epoch] = words.as_slice() else { return None };
    Some((((*host).to_owned(), port.parse().ok()?), epoch.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    fn name(host: &str, port: u16) -> Name {
        (host.to_owned(), port)
    }

    fn waiting(replica: Name) -> EmptyMaster {
        let own = Some(name("10.0.0.1", 7000));
        let followers = Followers { history: ReplId::from_random([7; 20]), own, replicas: vec![replica] };
        EmptyMaster::new(followers, at(0), TIMEOUT)
    }

    fn hello(host: &str, port: u16) -> Vec<u8> {
        hello_of(3, host, port)
    }

    fn hello_of(epoch: u64, host: &str, port: u16) -> Vec<u8> {
        format!("10.0.0.9,26379,{},3,mymaster,{host},{port},{epoch}", "a".repeat(40)).into_bytes()
    }

    #[test]
    fn what_is_kept_is_read_again_and_nonsense_is_passed_over() {
        let followers = Followers {
            history: ReplId::from_random([7; 20]),
            own: Some(name("10.0.0.1", 6379)),
            replicas: vec![name("10.0.0.2", 6379), name("db2.example.org", 7000)],
        };
        assert_eq!(Followers::parse(&followers.text()), followers);
        let odd = Followers::parse("history none\nreplica a\nreplica b 99999\n\0\nreplica c 1\nwhat");
        assert_eq!(odd, Followers { history: ReplId::NONE, own: None, replicas: vec![name("c", 1)] });
    }

    /// Only a master that is watched and followed keeps it, and a replica that is away for a moment is not forgotten.
    #[test]
    fn it_is_kept_while_somebody_could_take_over() {
        let replicas = vec![name("10.0.0.2", 6379)];
        let none = Some(Vec::new());
        let mut keeping = Keeping::since_start(at(0), Some(replicas.clone()));
        assert_eq!(keeping.look(at(1), none.clone(), TIMEOUT), Some(&replicas[..]), "they will come back");
        let mut keeping = Keeping::since_start(at(0), None);
        assert_eq!(keeping.look(at(0), None, TIMEOUT), None);
        assert_eq!(keeping.look(at(1), none.clone(), TIMEOUT), None);
        assert_eq!(keeping.look(at(2), Some(replicas.clone()), TIMEOUT), Some(&replicas[..]));
        assert_eq!(keeping.look(at(61), none.clone(), TIMEOUT), Some(&replicas[..]));
        assert_eq!(keeping.look(at(62), none.clone(), TIMEOUT), None, "nobody is there to take over");
        assert_eq!(keeping.look(at(63), Some(replicas.clone()), TIMEOUT), Some(&replicas[..]));
        assert_eq!(keeping.look(at(164), None, TIMEOUT), Some(&replicas[..]), "it follows another now");
        assert_eq!(keeping.look(at(165), none, TIMEOUT), Some(&replicas[..]), "and leads again");
        assert_eq!(keeping.look(at(166), Some(replicas), Duration::ZERO), None, "the rule is switched off");
    }

    /// The sentinels name this server until one of its replicas is the master; then it is to be made a replica.
    #[test]
    fn it_is_down_until_another_is_the_master() {
        let mut waiting = waiting(name("10.0.0.2", 7001));
        for _ in 0..3 {
            assert!(!waiting.on_hello(&hello("10.0.0.1", 7000), &[7000]));
            assert!(waiting.is_down_to_sentinels());
        }
        assert!(waiting.on_hello(&hello("10.0.0.3", 7000), &[7000]));
        assert!(!waiting.is_down_to_sentinels());
        assert!(!waiting.on_hello(&hello("10.0.0.3", 7000), &[7000]), "no news");
        assert!(!waiting.is_over(at(59)) && waiting.is_over(at(60)));
    }

    #[test]
    fn a_replica_that_was_promoted_before_the_start_is_known() {
        let table = [
            ("this server by another of its addresses", "172.17.0.2", 7000, true),
            ("a replica on another host", "10.0.0.2", 7000, false),
            ("a server with another port", "10.0.0.1", 7001, false),
        ];
        for (what, host, port, down) in table {
            let mut waiting = waiting(name("10.0.0.2", 7000));
            waiting.followers.own = None;
            waiting.on_hello(&hello(host, port), &[7000]);
            assert_eq!(waiting.is_down_to_sentinels(), down, "{what}");
        }
    }

    #[test]
    fn a_sentinel_that_was_away_names_whom_it_knew() {
        let mut waiting = waiting(name("10.0.0.2", 7000));
        waiting.on_hello(&hello_of(1, "10.0.0.2", 7000), &[7000]);
        assert!(!waiting.is_down_to_sentinels(), "it may be so");
        waiting.on_hello(&hello_of(2, "10.0.0.1", 7000), &[7000]);
        assert!(waiting.is_down_to_sentinels(), "it was so once");
        waiting.on_hello(&hello_of(1, "10.0.0.2", 7000), &[7000]);
        assert!(waiting.is_down_to_sentinels());
        assert!(waiting.on_hello(&hello_of(3, "10.0.0.2", 7000), &[7000]));
        assert!(!waiting.is_down_to_sentinels());
    }

    /// Its replica was a master, too, and has lost its data, too.
    #[test]
    fn two_masters_without_data_do_not_take_turns_for_ever() {
        let mut waiting = waiting(name("10.0.0.2", 7000));
        for (epoch, host, down) in [
            (1, "10.0.0.2", false),
            (2, "10.0.0.1", true),
            (3, "10.0.0.2", false),
            (4, "10.0.0.1", true),
            (5, "10.0.0.2", true),
            (5, "10.0.0.2", true),
            (6, "10.0.0.1", true),
            (7, "10.0.0.3", false),
            (8, "10.0.0.1", true),
        ] {
            waiting.on_hello(&hello_of(epoch, host, 7000), &[7000]);
            assert_eq!(waiting.is_down_to_sentinels(), down, "{epoch}");
        }
    }

    /// A master that was promoted a moment ago hears of its predecessor, too.
    #[test]
    fn a_master_knows_its_own_name_by_the_newest_epoch() {
        let mut keeping = Keeping::since_start(at(0), None);
        keeping.look(at(0), Some(vec![name("10.0.0.2", 7000)]), TIMEOUT);
        assert_eq!(keeping.own(), None);
        for (epoch, host) in [(1, "10.0.0.9"), (2, "10.0.0.1"), (1, "10.0.0.9")] {
            keeping.on_hello(&hello_of(epoch, host, 7000));
        }
        assert_eq!(keeping.own(), Some(&name("10.0.0.1", 7000)));
        keeping.on_hello(&hello_of(3, "10.0.0.2", 7000));
        assert_eq!(keeping.own(), None, "that is a replica of this one");
        keeping.look(at(1), None, TIMEOUT);
        keeping.on_hello(&hello_of(1, "10.0.0.1", 7000));
        assert_eq!(keeping.own(), Some(&name("10.0.0.1", 7000)), "another history");
        keeping.on_promoted();
        assert_eq!(keeping.own(), None, "it may have been another's");
    }

    #[test]
    fn what_is_no_greeting_says_nothing() {
        let mut waiting = waiting(name("10.0.0.2", 7001));
        for payload in
            [&b""[..], b"\xff", b"1,2,3,4,5,6,7,8,9", b"1,2,3,4,5,6,port,8", b"1,2,3,4,5,6,7,x", b"a,b"]
        {
            assert!(!waiting.on_hello(payload, &[7000]), "{}", payload.escape_ascii());
        }
        assert!(waiting.is_down_to_sentinels());
    }
}
