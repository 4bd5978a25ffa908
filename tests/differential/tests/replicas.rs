//! Random writes on a master must leave its replica with equal data. Redoubt replicates from Valkey and Redis, and they
//! replicate from Redoubt. Also checks that the master, after reloading its own files,
//! has the data of its replica.
//!
//! `DIFFERENTIAL_SEEDS` and `DIFFERENTIAL_FIRST_SEED` select more or other seeds.

use differential::{Caller, Command, Generator, Grammar, Pair, Peer, ReplicatedPair, setting};
use harness::Program;

const LENGTH: usize = 300;
const SEEDS: u64 = 60;
const SNAPSHOTS: u64 = 12;
const LOADS: u64 = 20;
/// Shrinking a report takes a while, so only this many are shrunk.
const MOST_REPORTED: usize = 5;

/// Commands that one server accepts and the other does not, or executes differently: the stream carries their effects.
const ODD: &[&str] = &[
    "FLUSHDB",
    "FUNCTION FLUSH",
    "ZADD z 0x1p3 a 0x10 b -0X1.8p1 c",
    "ZINCRBY z 0x1p-2 a",
    "ZADD z INCR 0x2 b",
    "GEOADD g 0x1 0x2 here",
    "RPUSH l x y x z x",
    "LREM l -9223372036854775808 x",
    "RPUSH s 0x10 3 0x2",
    "SORT s STORE sorted",
    "SET one abc",
    "SET two abd",
    "BITOP ONE some one two",
    "BITOP DIFF differ one two",
    "BITOP ANDOR andor one two",
    "SET number 10",
    "INCRBYFLOAT number 0x1p3",
    "HSET h f 1 g 2",
    "HINCRBYFLOAT h f 0x1p3",
    "HPEXPIREAT h 4102444800123 FIELDS 1 g",
    "SET number 11 IFEQ 10",
    "SET flag yes NX GET",
    "XADD x 1-1 a b",
    "XADD x 5-* a b",
    "XGROUP CREATE x readers 0",
    "XREADGROUP GROUP readers me COUNT 1 STREAMS x >",
    "XGROUP CREATECONSUMER x readers you",
    "XGROUP CREATECONSUMER x readers gone",
    "XGROUP DELCONSUMER x readers gone",
    "XCLAIM x readers you 0 1-1",
    "XAUTOCLAIM x readers me 0 0",
    "XGROUP SETID x readers 1-1 ENTRIESREAD 1",
    "XSETID x 9-9 ENTRIESADDED 9 MAXDELETEDID 1-0",
    "FUNCTION LOAD #!lua~name=brief\nredis.register_function('brief',function()return(1)end)",
    "FUNCTION DELETE brief",
    "FUNCTION LOAD #!lua~name=kept\nredis.register_function('kept',function()return(1)end)",
    "SPOP nosuch 3",
    "PFADD p a b c",
    "PFDEBUG TODENSE p",
    "ZADD taken 1 a 2 b 3 c",
    "BZPOPMAX taken 1",
    "BZPOPMIN taken 1",
    "BZMPOP 1 1 taken MIN",
    "ZRANGESTORE ranged z -inf +inf BYSCORE",
    "SETRANGE one 5 x",
];

/// A tilde stands for a space within an argument.
fn commands(lines: &[&str]) -> Vec<Command> {
    let word = |word: &str| word.replace('~', " ").into_bytes();
    lines.iter().map(|line| line.split(' ').map(word).collect()).collect()
}

/// Valkey and Redis do not replicate some side effects: the empty key of a BITFIELD whose overflow fails, and the
/// consumer of a group read or claim without entries. Redis computes the lag of a group differently from Valkey.
fn is_not_replicated(master: &Program, replica: &Program, command: &Command) -> bool {
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let of_groups = ["XGROUP", "XREADGROUP", "XCLAIM", "XAUTOCLAIM"];
    if command.first().is_some_and(|name| of_groups.iter().any(|known| is(name, known))) {
        let is =
            |program: &Program, other: Option<Program>| other.is_some_and(|it| it.name() == program.name());
        return !is(master, Some(Program::redoubt())) || !is(replica, Peer::Valkey.program());
    }
    command.first().is_some_and(|name| is(name, "BITFIELD")) && command.iter().any(|word| is(word, "FAIL"))
}

/// How master and replica get their data. Returns a report of the differences.
type SyncMethod = fn(&ReplicatedPair, &[Command]) -> Option<String>;

/// Checks for equal data after the special commands and after the writes of each seed.
fn data_is_equal(
    master: &Program,
    replica: &Program,
    payloads: &[Vec<u8>],
    seeds: u64,
    difference: SyncMethod,
) -> ReplicatedPair {
    let followed = ReplicatedPair::start(master, replica);
    let grammar = Grammar::of(Peer::Valkey);
    let first = setting("DIFFERENTIAL_FIRST_SEED", 1);
    let seeds = first..first + setting("DIFFERENTIAL_SEEDS", seeds);
    let random =
        seeds.map(|seed| (format!("seed {seed}"), Generator::new(&grammar, payloads, seed).sequence(LENGTH)));
    let all = std::iter::once(("odd".to_owned(), commands(ODD))).chain(random);
    let (mut keys, mut report) = (0, Vec::new());
    for (name, commands) in all {
        let mut commands = followed.replicated_commands(commands);
        commands.retain(|command| !is_not_replicated(master, replica, command));
        if difference(&followed, &commands).is_some() && report.len() < MOST_REPORTED {
            let shortest =
                ReplicatedPair::shrink_commands(commands, |fewer| difference(&followed, fewer).is_some());
            report.push(format!("{name}:\n{}", difference(&followed, &shortest).unwrap_or_default()));
        }
        keys += followed.keys();
    }
    let names = [master.name(), replica.name()].join(" and its replica ");
    assert!(report.is_empty(), "{names} differ:\n{}", report.join("\n"));
    assert!(keys > 100, "{names} came to {keys} keys");
    followed
}

/// Both directions, with RESTORE payloads from the peer: all seeds by the stream, and a few by full synchronisation.
fn each_follows_the_other(peer: Option<Program>) {
    let Some(peer) = peer else { return };
    let ours = Program::redoubt();
    let payloads = Pair::start(&ours, &peer).payloads();
    for (master, replica) in [(&ours, &peer), (&peer, &ours)] {
        data_is_equal(master, replica, &payloads, SEEDS, ReplicatedPair::difference);
        data_is_equal(master, replica, &payloads, SNAPSHOTS, ReplicatedPair::difference_by_snapshot);
    }
}

#[test]
fn redoubt_and_valkey_replicate_each_other_identically() {
    each_follows_the_other(Peer::Valkey.program());
}

/// A server reloads its files and must have the data that the other server got from the stream.
#[test]
fn files_of_redoubt_and_valkey_reload_to_replica_data() {
    let Some(valkey) = Peer::Valkey.program() else { return };
    let ours = Program::redoubt();
    let payloads = Pair::start(&ours, &valkey).payloads();
    let here = data_is_equal(&ours, &valkey, &payloads, LOADS, ReplicatedPair::difference_by_aof);
    data_is_equal(&ours, &valkey, &payloads, LOADS, ReplicatedPair::difference_by_reload);
    data_is_equal(&valkey, &ours, &payloads, LOADS, ReplicatedPair::difference_by_aof);
    data_is_equal(&valkey, &ours, &payloads, LOADS, ReplicatedPair::difference_by_reload);
    if std::env::var_os("DIFFERENTIAL_SEEDS").is_none() {
        let missing_commands = here.missing_commands(Caller::Loader);
        assert!(missing_commands.is_empty(), "{}", missing_commands.join("\n"));
    }
}

#[test]
fn redoubt_and_redis_8_replicate_each_other_identically() {
    each_follows_the_other(Peer::Redis8.program());
}

/// Only commands that both servers have. Payload formats are those of the older server.
#[test]
fn redoubt_and_redis_7_replicate_each_other_identically() {
    each_follows_the_other(Peer::Redis.program());
}
