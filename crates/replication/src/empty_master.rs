//! Protects replicas from a sentinel-monitored master that restarted without its data.
//!
//! A supervisor may restart a dead master before the sentinels notice. If the master's data was not on disk, its
//! replicas would full-resync to an empty dataset. Sentinels treat a master that answers PING with an error as down and
//! promote a replica. Therefore a master that has replicas and is watched by sentinels writes a small file
//! ([`RecordedReplicas`]). If the master starts with that file but without keys, it waits ([`EmptyMaster`]): it serves
//! no clients, lets no replica synchronise, and answers the PINGs of sentinels with an error.
//!
//! Sentinels announce the current master in the hello messages that they publish on every server. Once they announce
//! another master, this node answers their PINGs again, because a sentinel only reconfigures a server that is up. If
//! two masters have lost their data, the sentinels could alternate between them for ever. Therefore a successor that
//! this node has replaced repeatedly is ignored, and this node stays down until a third server is announced.
//!
//! | event | reaction |
//! | --- | --- |
//! | sentinels announce another master | answers PING; the sentinels will make it a replica |
//! | REPLICAOF | follows the new master and synchronises |
//! | REPLICAOF NO ONE from a sentinel | refuses: the sentinel cannot reach the replicas that have the data |
//! | REPLICAOF NO ONE from another client | serves the empty dataset, as the operator asked |
//! | `empty-master-timeout` expires | serves the empty dataset: no replica could be promoted |
//!
//! Invariant: no replica synchronises from this node before it serves clients.

use std::time::Duration;

use clock::Instant;

use crate::id::ReplId;

const HISTORY_KEYWORD: &str = "history";
const MASTER_KEYWORD: &str = "master";
const REPLICA_KEYWORD: &str = "replica";

/// The host (an IP address or hostname) and the port of a server.
pub type HostPort = (String, u16);

/// The file in which a master records its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedReplicas {
    /// The replication id of the dataset that the replicas have.
    pub history: ReplId,
    /// The address under which sentinels know this server, if they have announced it.
    pub own_address: Option<HostPort>,
    /// The addresses that the replicas announced.
    pub replicas: Vec<HostPort>,
}

impl RecordedReplicas {
    /// Formats the file in the syntax that [`RecordedReplicas::parse`] reads.
    #[must_use]
    pub fn to_file_text(&self) -> String {
        let mut text = format!("{HISTORY_KEYWORD} {}\n", self.history);
        if let Some((host, port)) = &self.own_address {
            text += &format!("{MASTER_KEYWORD} {host} {port}\n");
        }
        for (host, port) in &self.replicas {
            text += &format!("{REPLICA_KEYWORD} {host} {port}\n");
        }
        text
    }

    /// Parses the file. Malformed lines are skipped: the existence of the file matters more than its content.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found = Self { history: ReplId::NONE, own_address: None, replicas: Vec::new() };
        for line in text.lines() {
            match line.split_ascii_whitespace().collect::<Vec<_>>().as_slice() {
                [HISTORY_KEYWORD, id] => {
                    found.history = ReplId::parse(id.as_bytes()).unwrap_or(found.history);
                }
                [MASTER_KEYWORD, host, port] => {
                    found.own_address = port.parse().ok().map(|port| ((*host).to_owned(), port));
                }
                [REPLICA_KEYWORD, host, port] => {
                    found.replicas.extend(port.parse().ok().map(|port| ((*host).to_owned(), port)));
                }
                _ => {}
            }
        }
        found
    }
}

/// Decides which replicas a master records. The record is deleted once no replica has been connected for
/// `empty-master-timeout`, which is how long an empty master would wait for them.
#[derive(Debug, Clone, Default)]
pub struct ReplicaRecorder {
    last_replicas: Option<(Instant, Vec<HostPort>)>,
    /// The epoch and address of the newest master that sentinels announced while this server was a master.
    announced_master: Option<(u64, HostPort)>,
}

impl ReplicaRecorder {
    /// Creates the recorder at startup from the replicas listed in the file; `None` means that there was no file.
    #[must_use]
    pub fn at_startup(now: Instant, replicas: Option<Vec<HostPort>>) -> Self {
        Self { last_replicas: replicas.map(|replicas| (now, replicas)), announced_master: None }
    }

    /// Handles a hello message, in which a sentinel announces the current master.
    pub fn on_hello(&mut self, payload: &[u8]) {
        if let Some((named, epoch)) = announced_master(payload)
            && self.announced_master.as_ref().is_none_or(|(newest, _)| epoch >= *newest)
        {
            self.announced_master = Some((epoch, named));
        }
    }

    /// Handles REPLICAOF NO ONE. Forgets the announced master, because it may have been another server even if this
    /// server was a master all the time.
    pub fn on_promoted(&mut self) {
        self.announced_master = None;
    }

    /// Returns the address under which sentinels know this master; `None` before their first hello message.
    #[must_use]
    pub fn own_address(&self) -> Option<&HostPort> {
        let replicas = self.last_replicas.as_ref().map(|(_, replicas)| replicas);
        let is_replica = |name: &&HostPort| replicas.is_some_and(|replicas| replicas.contains(name));
        self.announced_master.as_ref().map(|(_, name)| name).filter(|name| !is_replica(name))
    }

    /// Returns the replicas to record at `now`. `replicas` lists the connected replicas if this server is a master
    /// watched by sentinels. It is `None` otherwise; the record then stays unchanged, because a replica may restart as
    /// a master if its configuration file does not name its master.
    pub fn update_recorded_replicas(
        &mut self,
        now: Instant,
        replicas: Option<Vec<HostPort>>,
        timeout: Duration,
    ) -> Option<&[HostPort]> {
        match replicas {
            None => {
                self.announced_master = None;
                self.last_replicas.iter_mut().for_each(|(at, _)| *at = now);
            }
            Some(replicas) if !replicas.is_empty() => self.last_replicas = Some((now, replicas)),
            Some(_) => {}
        }
        self.last_replicas.take_if(|(at, _)| now.since(*at) >= timeout);
        self.last_replicas.as_ref().map(|(_, replicas)| replicas.as_slice())
    }
}

/// The state of a master that lost its data and waits until a replica has been promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmptyMaster {
    recorded_replicas: RecordedReplicas,
    deadline: Instant,
    /// The newest epoch in which sentinels announced a master.
    newest_epoch: u64,
    /// Whether the newest announced master is another server.
    is_replaced: bool,
    /// The last announced master that is not this server.
    successor: Option<HostPort>,
    /// Former successors that this server has replaced again. A server appears once for each time.
    failed_successors: Vec<HostPort>,
}

/// A successor is ignored after this server has replaced it this often.
const MAX_SUCCESSOR_FAILURES: usize = 2;
/// Bounds the memory of [`EmptyMaster::failed_successors`].
const MAX_FAILED_SUCCESSORS: usize = 64;

impl EmptyMaster {
    /// Starts waiting for a promotion, for at most `timeout`.
    #[must_use]
    pub fn new(recorded_replicas: RecordedReplicas, now: Instant, timeout: Duration) -> Self {
        let (successor, failed) = (None, Vec::new());
        Self {
            recorded_replicas,
            deadline: now + timeout,
            newest_epoch: 0,
            is_replaced: false,
            successor,
            failed_successors: failed,
        }
    }

    /// Handles a hello message of a sentinel: `ip,port,runid,epoch,name,master ip,master port,master epoch`. Returns
    /// true for the first message that announces another master. `ports` are the ports of this server.
    ///
    /// The announced master counts as another server if it is one of the replicas, has a port that this server does not
    /// have, or differs from the address announced while this server was the master. A different IP address alone
    /// proves nothing, since this server may have several. Only the newest epoch counts, because a sentinel that was
    /// partitioned announces an outdated master.
    pub fn on_hello(&mut self, payload: &[u8], ports: &[u16]) -> bool {
        let Some((named, epoch)) = announced_master(payload).filter(|(_, epoch)| *epoch >= self.newest_epoch)
        else {
            return false;
        };
        self.newest_epoch = epoch;
        let other = self.recorded_replicas.replicas.contains(&named)
            || !ports.contains(&named.1)
            || self.recorded_replicas.own_address.as_ref().is_some_and(|own| *own != named);
        let replaced = other
            && self.failed_successors.iter().filter(|failed| **failed == named).count()
                < MAX_SUCCESSOR_FAILURES;
        if other {
            self.successor = Some(named);
        } else if self.failed_successors.len() < MAX_FAILED_SUCCESSORS {
            self.failed_successors.extend(self.successor.take());
        }
        let before = std::mem::replace(&mut self.is_replaced, replaced);
        replaced && !before
    }

    /// Returns whether this server must answer the PINGs of sentinels with an error.
    #[must_use]
    pub fn is_down_to_sentinels(&self) -> bool {
        !self.is_replaced
    }

    /// Returns whether the timeout has expired, so that this master must serve its empty dataset.
    #[must_use]
    pub fn has_timed_out(&self, now: Instant) -> bool {
        now >= self.deadline
    }
}

/// Parses the address and the epoch of the announced master from a hello message.
fn announced_master(payload: &[u8]) -> Option<(HostPort, u64)> {
    let words: Vec<&str> = std::str::from_utf8(payload).ok()?.split(',').collect();
    let [_, _, _, _, _, host, port, epoch] = words.as_slice() else { return None };
    Some((((*host).to_owned(), port.parse().ok()?), epoch.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    fn at_seconds(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    fn host_port(host: &str, port: u16) -> HostPort {
        (host.to_owned(), port)
    }

    fn waiting_master(replica: HostPort) -> EmptyMaster {
        let own = Some(host_port("10.0.0.1", 7000));
        let followers = RecordedReplicas {
            history: ReplId::from_random([7; 20]),
            own_address: own,
            replicas: vec![replica],
        };
        EmptyMaster::new(followers, at_seconds(0), TEST_TIMEOUT)
    }

    fn hello_message(host: &str, port: u16) -> Vec<u8> {
        hello_message_with_epoch(3, host, port)
    }

    fn hello_message_with_epoch(epoch: u64, host: &str, port: u16) -> Vec<u8> {
        format!("10.0.0.9,26379,{},3,mymaster,{host},{port},{epoch}", "a".repeat(40)).into_bytes()
    }

    #[test]
    fn file_round_trips_and_malformed_lines_are_skipped() {
        let followers = RecordedReplicas {
            history: ReplId::from_random([7; 20]),
            own_address: Some(host_port("10.0.0.1", 6379)),
            replicas: vec![host_port("10.0.0.2", 6379), host_port("db2.example.org", 7000)],
        };
        assert_eq!(RecordedReplicas::parse(&followers.to_file_text()), followers);
        let odd = RecordedReplicas::parse("history none\nreplica a\nreplica b 99999\n\0\nreplica c 1\nwhat");
        assert_eq!(
            odd,
            RecordedReplicas { history: ReplId::NONE, own_address: None, replicas: vec![host_port("c", 1)] }
        );
    }

    /// A master records its replicas only if sentinels watch it. A briefly disconnected replica stays in the record.
    #[test]
    fn record_is_cleared_after_the_timeout_without_replicas() {
        let replicas = vec![host_port("10.0.0.2", 6379)];
        let none = Some(Vec::new());
        let mut keeping = ReplicaRecorder::at_startup(at_seconds(0), Some(replicas.clone()));
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(1), none.clone(), TEST_TIMEOUT),
            Some(&replicas[..]),
            "they will come back"
        );
        let mut keeping = ReplicaRecorder::at_startup(at_seconds(0), None);
        assert_eq!(keeping.update_recorded_replicas(at_seconds(0), None, TEST_TIMEOUT), None);
        assert_eq!(keeping.update_recorded_replicas(at_seconds(1), none.clone(), TEST_TIMEOUT), None);
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(2), Some(replicas.clone()), TEST_TIMEOUT),
            Some(&replicas[..])
        );
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(61), none.clone(), TEST_TIMEOUT),
            Some(&replicas[..])
        );
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(62), none.clone(), TEST_TIMEOUT),
            None,
            "nobody is there to take over"
        );
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(63), Some(replicas.clone()), TEST_TIMEOUT),
            Some(&replicas[..])
        );
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(164), None, TEST_TIMEOUT),
            Some(&replicas[..]),
            "it follows another now"
        );
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(165), none, TEST_TIMEOUT),
            Some(&replicas[..]),
            "and leads again"
        );
        assert_eq!(
            keeping.update_recorded_replicas(at_seconds(166), Some(replicas), Duration::ZERO),
            None,
            "the rule is switched off"
        );
    }

    /// Sentinels get errors from this server until they have promoted a replica and announce it.
    #[test]
    fn server_is_down_until_another_master_is_announced() {
        let mut waiting = waiting_master(host_port("10.0.0.2", 7001));
        for _ in 0..3 {
            assert!(!waiting.on_hello(&hello_message("10.0.0.1", 7000), &[7000]));
            assert!(waiting.is_down_to_sentinels());
        }
        assert!(waiting.on_hello(&hello_message("10.0.0.3", 7000), &[7000]));
        assert!(!waiting.is_down_to_sentinels());
        assert!(!waiting.on_hello(&hello_message("10.0.0.3", 7000), &[7000]), "no news");
        assert!(!waiting.has_timed_out(at_seconds(59)) && waiting.has_timed_out(at_seconds(60)));
    }

    #[test]
    fn replica_promoted_before_the_restart_is_recognised() {
        let table = [
            ("this server by another of its addresses", "172.17.0.2", 7000, true),
            ("a replica on another host", "10.0.0.2", 7000, false),
            ("a server with another port", "10.0.0.1", 7001, false),
        ];
        for (what, host, port, down) in table {
            let mut waiting = waiting_master(host_port("10.0.0.2", 7000));
            waiting.recorded_replicas.own_address = None;
            waiting.on_hello(&hello_message(host, port), &[7000]);
            assert_eq!(waiting.is_down_to_sentinels(), down, "{what}");
        }
    }

    #[test]
    fn announcements_of_older_epochs_are_ignored() {
        let mut waiting = waiting_master(host_port("10.0.0.2", 7000));
        waiting.on_hello(&hello_message_with_epoch(1, "10.0.0.2", 7000), &[7000]);
        assert!(!waiting.is_down_to_sentinels(), "it may be so");
        waiting.on_hello(&hello_message_with_epoch(2, "10.0.0.1", 7000), &[7000]);
        assert!(waiting.is_down_to_sentinels(), "it was so once");
        waiting.on_hello(&hello_message_with_epoch(1, "10.0.0.2", 7000), &[7000]);
        assert!(waiting.is_down_to_sentinels());
        assert!(waiting.on_hello(&hello_message_with_epoch(3, "10.0.0.2", 7000), &[7000]));
        assert!(!waiting.is_down_to_sentinels());
    }

    /// The promoted replica has lost its data as well, like the old master.
    #[test]
    fn two_empty_masters_do_not_replace_each_other_forever() {
        let mut waiting = waiting_master(host_port("10.0.0.2", 7000));
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
            waiting.on_hello(&hello_message_with_epoch(epoch, host, 7000), &[7000]);
            assert_eq!(waiting.is_down_to_sentinels(), down, "{epoch}");
        }
    }

    /// Shortly after a promotion, some sentinels still announce the old master with the older epoch.
    #[test]
    fn master_learns_its_own_address_from_the_newest_epoch() {
        let mut keeping = ReplicaRecorder::at_startup(at_seconds(0), None);
        keeping.update_recorded_replicas(
            at_seconds(0),
            Some(vec![host_port("10.0.0.2", 7000)]),
            TEST_TIMEOUT,
        );
        assert_eq!(keeping.own_address(), None);
        for (epoch, host) in [(1, "10.0.0.9"), (2, "10.0.0.1"), (1, "10.0.0.9")] {
            keeping.on_hello(&hello_message_with_epoch(epoch, host, 7000));
        }
        assert_eq!(keeping.own_address(), Some(&host_port("10.0.0.1", 7000)));
        keeping.on_hello(&hello_message_with_epoch(3, "10.0.0.2", 7000));
        assert_eq!(keeping.own_address(), None, "that is a replica of this one");
        keeping.update_recorded_replicas(at_seconds(1), None, TEST_TIMEOUT);
        keeping.on_hello(&hello_message_with_epoch(1, "10.0.0.1", 7000));
        assert_eq!(keeping.own_address(), Some(&host_port("10.0.0.1", 7000)), "another history");
        keeping.on_promoted();
        assert_eq!(keeping.own_address(), None, "it may have been another's");
    }

    #[test]
    fn malformed_hello_messages_are_ignored() {
        let mut waiting = waiting_master(host_port("10.0.0.2", 7001));
        for payload in
            [&b""[..], b"\xff", b"1,2,3,4,5,6,7,8,9", b"1,2,3,4,5,6,port,8", b"1,2,3,4,5,6,7,x", b"a,b"]
        {
            assert!(!waiting.on_hello(payload, &[7000]), "{}", payload.escape_ascii());
        }
        assert!(waiting.is_down_to_sentinels());
    }
}
