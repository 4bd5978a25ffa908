//! Random writes on a master must leave its replica with equal data. Redoubt replicates from Valkey and Redis, and they
//! replicate from Redoubt. After reloading its own files, the master must still have its replica's data.
//!
//! `DIFFERENTIAL_SEEDS` and `DIFFERENTIAL_FIRST_SEED` select more or other seeds.

use differential::{
    Command, CommandCaller, Generator, Grammar, ReferenceServer, ReplicatedPair, ServerPair, env_number,
};
use harness::Program;

const SEQUENCE_LENGTH: usize = 300;
const SEED_COUNT: u64 = 60;
const SNAPSHOT_SEED_COUNT: u64 = 12;
const RELOAD_SEED_COUNT: u64 = 20;
/// The maximum number of reports to shrink, because shrinking takes a while.
const MAX_SHRUNK_REPORTS: usize = 5;

/// Commands that only one server accepts, or that the servers execute differently. The stream carries their effects, so
/// the data must still be equal.
const SPECIAL_COMMANDS: &[&str] = &[
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

/// Parses one command per line; a tilde stands for a space within an argument.
fn parse_commands(lines: &[&str]) -> Vec<Command> {
    let word = |word: &str| word.replace('~', " ").into_bytes();
    lines.iter().map(|line| line.split(' ').map(word).collect()).collect()
}

/// Whether Valkey and Redis do not replicate a side effect of the command: the empty key of a failing BITFIELD, and the
/// consumer created by a group read or claim without entries. Redis also computes the lag of a group differently from
/// Valkey.
fn is_not_replicated(master: &Program, replica: &Program, command: &Command) -> bool {
    let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let of_groups = ["XGROUP", "XREADGROUP", "XCLAIM", "XAUTOCLAIM"];
    if command.first().is_some_and(|name| of_groups.iter().any(|known| is(name, known))) {
        let is =
            |program: &Program, other: Option<Program>| other.is_some_and(|it| it.name() == program.name());
        return !is(master, Some(Program::redoubt())) || !is(replica, ReferenceServer::Valkey.program());
    }
    command.first().is_some_and(|name| is(name, "BITFIELD")) && command.iter().any(|word| is(word, "FAIL"))
}

/// A way in which master and replica get their data, which returns a report of the differences.
type SyncMethod = fn(&ReplicatedPair, &[Command]) -> Option<String>;

/// Checks for equal data after the special commands and after the writes of each seed.
fn assert_equal_data(
    master: &Program,
    replica: &Program,
    payloads: &[Vec<u8>],
    seeds: u64,
    find_difference: SyncMethod,
) -> ReplicatedPair {
    let followed = ReplicatedPair::start(master, replica);
    let grammar = Grammar::for_reference_server(ReferenceServer::Valkey);
    let first = env_number("DIFFERENTIAL_FIRST_SEED", 1);
    let seeds = first..first + env_number("DIFFERENTIAL_SEEDS", seeds);
    let random = seeds.map(|seed| {
        (format!("seed {seed}"), Generator::new(&grammar, payloads, seed).generate_sequence(SEQUENCE_LENGTH))
    });
    let all = std::iter::once(("odd".to_owned(), parse_commands(SPECIAL_COMMANDS))).chain(random);
    let (mut keys, mut report) = (0, Vec::new());
    for (name, commands) in all {
        let mut commands = followed.replicated_commands(commands);
        commands.retain(|command| !is_not_replicated(master, replica, command));
        if find_difference(&followed, &commands).is_some() && report.len() < MAX_SHRUNK_REPORTS {
            let shortest = ReplicatedPair::shrink_commands(commands, |fewer| {
                find_difference(&followed, fewer).is_some()
            });
            report.push(format!("{name}:\n{}", find_difference(&followed, &shortest).unwrap_or_default()));
        }
        keys += followed.replica_key_count();
    }
    let names = [master.name(), replica.name()].join(" and its replica ");
    assert!(report.is_empty(), "{names} differ:\n{}", report.join("\n"));
    assert!(keys > 100, "{names} came to {keys} keys");
    followed
}

/// Tests replication in both directions: all seeds by the stream, and a few by full synchronisation. The peer creates
/// the payloads for RESTORE.
fn check_both_directions(peer: Option<Program>) {
    let Some(peer) = peer else { return };
    let ours = Program::redoubt();
    let payloads = ServerPair::start(&ours, &peer).dump_payloads();
    for (master, replica) in [(&ours, &peer), (&peer, &ours)] {
        assert_equal_data(
            master,
            replica,
            &payloads,
            SEED_COUNT,
            ReplicatedPair::find_difference_after_streaming,
        );
        assert_equal_data(
            master,
            replica,
            &payloads,
            SNAPSHOT_SEED_COUNT,
            ReplicatedPair::find_difference_after_snapshot,
        );
    }
}

#[test]
fn redoubt_and_valkey_replicate_each_other_identically() {
    check_both_directions(ReferenceServer::Valkey.program());
}

/// A server reloads its files and must have the data that the other server got from the stream.
#[test]
fn files_of_redoubt_and_valkey_reload_to_replica_data() {
    let Some(valkey) = ReferenceServer::Valkey.program() else { return };
    let ours = Program::redoubt();
    let payloads = ServerPair::start(&ours, &valkey).dump_payloads();
    let here = assert_equal_data(
        &ours,
        &valkey,
        &payloads,
        RELOAD_SEED_COUNT,
        ReplicatedPair::find_difference_after_aof_load,
    );
    assert_equal_data(
        &ours,
        &valkey,
        &payloads,
        RELOAD_SEED_COUNT,
        ReplicatedPair::find_difference_after_reload,
    );
    assert_equal_data(
        &valkey,
        &ours,
        &payloads,
        RELOAD_SEED_COUNT,
        ReplicatedPair::find_difference_after_aof_load,
    );
    assert_equal_data(
        &valkey,
        &ours,
        &payloads,
        RELOAD_SEED_COUNT,
        ReplicatedPair::find_difference_after_reload,
    );
    if std::env::var_os("DIFFERENTIAL_SEEDS").is_none() {
        let missing_commands = here.missing_commands(CommandCaller::Loader);
        assert!(missing_commands.is_empty(), "{}", missing_commands.join("\n"));
    }
}

#[test]
fn redoubt_and_redis_8_replicate_each_other_identically() {
    check_both_directions(ReferenceServer::Redis8.program());
}

/// The test uses only commands that both servers have, and payload formats of the older server.
#[test]
fn redoubt_and_redis_7_replicate_each_other_identically() {
    check_both_directions(ReferenceServer::Redis7.program());
}
