//! Generates client commands of every type, in several databases, in transactions and scripts.

use clock::Millis;
use engine::EffectLog;
use slot_routing::{Slot, SlotSet};

use crate::RandomSource;
use crate::executor::Executor;

/// The number of databases that clients use outside of a cluster.
pub(crate) const DATABASE_COUNT: u16 = 3;
/// The number of keys per type.
const KEYS_PER_TYPE: usize = 5;
/// The number of keys that clients write only with SET.
const PLAIN_KEY_COUNT: usize = 6;

/// The name of a command, followed by its arguments.
pub(crate) type CommandWords = Vec<String>;

const FUNCTION_LIBRARY: &str = "#!lua name=lib\nredis.register_function('put', function(keys, args) \
                       return redis.call('SET', keys[1], args[1]) end)";
const PUSH_AND_INCREMENT_SCRIPT: &str =
    "redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('INCR', KEYS[2])";

/// Command templates. Placeholders: `%` is a unique value, `#` a small number, `@` a Unix time in
/// milliseconds near now, `?` one of a few fields; a letter and `*` is one of a few keys of that
/// type.
const COMMAND_TEMPLATES: [&str; 68] = [
    "SET p* %",
    "SET p* %",
    "SET p* %",
    "SET p* % PX @",
    "MSET p* % p* %",
    "SET s* % EX #",
    "APPEND s* %",
    "SETRANGE s* # %",
    "SETBIT s* # 1",
    "GETDEL s*",
    "GETEX s* PX @",
    "INCRBY n* #",
    "INCRBYFLOAT n* 1.5",
    "DECR n*",
    "RPUSH l* % %",
    "LPUSH l* %",
    "LPOP l*",
    "RPOP l* 2",
    "LTRIM l* 0 #",
    "LSET l* 0 %",
    "LINSERT l* BEFORE a %",
    "LMOVE l* l* LEFT RIGHT",
    "HSET h* ? % ? %",
    "HSET h* ? %",
    "HDEL h* ?",
    "HINCRBY h* count #",
    "HPEXPIRE h* @ FIELDS 1 ?",
    "HPERSIST h* FIELDS 1 ?",
    "SADD t* % ?",
    "SADD t* # #",
    "SREM t* ?",
    "SPOP t*",
    "SMOVE t* t* ?",
    "SINTERSTORE t* t* t*",
    "SUNIONSTORE t* t* t*",
    "ZADD z* # ? # %",
    "ZADD z* GT CH # ?",
    "ZINCRBY z* # ?",
    "ZPOPMIN z*",
    "ZREMRANGEBYRANK z* 0 0",
    "ZUNIONSTORE z* 2 z* z* WEIGHTS 2 #",
    "GEOADD g* 13.3 38.1 ?",
    "XADD x* * ? %",
    "XADD x* MAXLEN ~ 5 * ? %",
    "XTRIM x* MAXLEN #",
    "XGROUP CREATE x* group 0 MKSTREAM",
    "XREADGROUP GROUP group one COUNT 2 STREAMS x* >",
    "PFADD f* % ?",
    "PFMERGE f* f*",
    "BITFIELD b* SET u8 # #",
    "DEL p* l* h*",
    "UNLINK s* t* z*",
    "RENAME l* l*",
    "RENAMENX s* s*",
    "COPY h* h* REPLACE",
    "COPY z* z* REPLACE",
    "PEXPIRE l* @",
    "PEXPIRE z* @",
    "PERSIST l*",
    "SORT t* ALPHA STORE l*",
    "MOVE p* 1",
    "SELECT 0",
    "SELECT 1",
    "SELECT 2",
    "FLUSHDB",
    "SWAPDB 0 1",
    "FLUSHALL",
    "OBJECT ENCODING l*",
];
/// Templates of read commands. Their replies depend neither on the encoding of a value nor on how often and in which
/// order its elements were added.
const READ_TEMPLATES: [&str; 37] = [
    "GET p*",
    "MGET p* p* p*",
    "GET s*",
    "GETRANGE s* 1 9",
    "STRLEN s*",
    "BITCOUNT s*",
    "GET n*",
    "PTTL p*",
    "PTTL s*",
    "PEXPIRETIME l*",
    "PEXPIRETIME z*",
    "TTL h*",
    "LRANGE l* 0 -1",
    "LLEN l*",
    "LINDEX l* -1",
    "LPOS l* a",
    "HLEN h*",
    "HMGET h* f0 f1 f2 f3 f4 f5 count",
    "HSTRLEN h* ?",
    "HPTTL h* FIELDS 3 f0 f1 f2",
    "HPEXPIRETIME h* FIELDS 3 f3 f4 f5",
    "SCARD t*",
    "SORT_RO t* ALPHA",
    "SMISMEMBER t* f0 f1 f2 1 2",
    "SINTERCARD 2 t* t*",
    "ZRANGE z* 0 -1 WITHSCORES",
    "ZRANK z* ?",
    "ZCOUNT z* 2 5",
    "GEOPOS g* ?",
    "XRANGE x* - +",
    "XLEN x*",
    "XINFO GROUPS x*",
    "XPENDING x* group",
    "BITFIELD_RO b* GET u8 #",
    "EXISTS p* l* h* t* z*",
    "TYPE z*",
    "DBSIZE",
];

/// Templates of blocking commands, each with a command that counts the available elements.
const BLOCKING_TEMPLATES: [(&str, &str); 8] = [
    ("BLPOP l* ", "LLEN"),
    ("BRPOP l* ", "LLEN"),
    ("BLMOVE l* l* LEFT RIGHT ", "LLEN"),
    ("BRPOPLPUSH l* l* ", "LLEN"),
    ("BZPOPMIN z* ", "ZCARD"),
    ("BZPOPMAX z* ", "ZCARD"),
    // With the id `$`, XREAD returns only entries that are added later, so no counting command applies.
    ("XREAD BLOCK & STREAMS x* $", ""),
    ("XREADGROUP GROUP group two BLOCK & STREAMS x* >", ""),
];

/// The number of templates at the end of [`COMMAND_TEMPLATES`] that are used rarely.
const RARE_TEMPLATE_COUNT: usize = 4;

/// Returns the slots of all keys that clients can use.
fn slots_of_client_keys() -> SlotSet {
    let words = COMMAND_TEMPLATES.iter().flat_map(|line| line.split(' '));
    let letters = words.filter_map(|word| word.strip_suffix('*').filter(|letter| letter.len() == 1));
    letters
        .flat_map(|letter| (0..key_count(letter)).map(move |number| format!("{letter}{number}")))
        .map(|key| Slot::of_key(key.as_bytes()))
        .collect()
}

/// Creates an executor whose engine serves every slot to which client keys may hash.
pub(crate) fn new_executor(log: Box<dyn EffectLog>) -> Executor {
    Executor::new(&slots_of_client_keys(), DATABASE_COUNT, None, log)
}

/// Returns the values of the keys that clients write only with SET.
pub(crate) fn plain_values(executor: &mut Executor) -> Vec<String> {
    let names: Vec<String> = (0..PLAIN_KEY_COUNT).map(|number| format!("p{number}")).collect();
    let mut values = Vec::new();
    for db in 0..DATABASE_COUNT {
        let words: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
        let reply = executor.run_command(db, Millis(0), &words);
        let text = String::from_utf8_lossy(&reply).into_owned();
        values
            .extend(text.split("\r\n").filter(|line| !line.starts_with(['*', '$', '_'])).map(str::to_owned));
    }
    values.retain(|value| !value.is_empty());
    values
}

/// Returns the number of keys whose names begin with this letter.
fn key_count(letter: &str) -> usize {
    if letter == "p" { PLAIN_KEY_COUNT } else { KEYS_PER_TYPE }
}

/// Fills the placeholders of a template. Key names start with `tag`.
fn fill_template(
    template: &str,
    tag: &str,
    random: &mut RandomSource,
    values_issued: &mut u64,
) -> CommandWords {
    let fill = |word: &str| match word {
        "%" => {
            *values_issued += 1;
            let text = format!("v{values_issued}");
            if random.random_bool(2) && !template.contains("p*") { text + &"-".repeat(700) } else { text }
        }
        "#" => random.random_below(9).to_string(),
        "@" => (20 + random.random_below(3000)).to_string(),
        "?" => format!("f{}", random.random_below(6)),
        word if word.len() == 2 && word.ends_with('*') => {
            let letter = &word[..1];
            format!("{tag}{letter}{}", random.random_below(key_count(letter)))
        }
        word => word.to_owned(),
    };
    template.split(' ').map(fill).collect()
}

fn single_command(random: &mut RandomSource, values_issued: &mut u64) -> CommandWords {
    let common = COMMAND_TEMPLATES.len() - RARE_TEMPLATE_COUNT;
    let number = if random.random_bool(2) {
        common + random.random_below(RARE_TEMPLATE_COUNT)
    } else {
        random.random_below(common)
    };
    fill_template(COMMAND_TEMPLATES[number], "", random, values_issued)
}

/// Returns read commands on random keys.
pub(crate) fn read_commands(random: &mut RandomSource) -> Vec<CommandWords> {
    (0..=random.random_below(4))
        .map(|_| fill_template(READ_TEMPLATES[random.random_below(READ_TEMPLATES.len())], "", random, &mut 0))
        .collect()
}

/// Returns a blocking command on keys that start with `tag`, and a command that counts the elements for which it waits,
/// if there is one.
pub(crate) fn blocking_command(tag: &str, random: &mut RandomSource) -> (CommandWords, Option<CommandWords>) {
    let (line, length) = BLOCKING_TEMPLATES[random.random_below(BLOCKING_TEMPLATES.len())];
    let mut words = fill_template(line.trim_end(), tag, random, &mut 0);
    let millis = random.pick_random(&[0, 20, 300, 3000]);
    match words.iter_mut().find(|word| *word == "&") {
        Some(place) => *place = millis.to_string(),
        None => words.push(format!("{}.{:03}", millis / 1000, millis % 1000)),
    }
    let length = (!length.is_empty()).then(|| vec![length.to_owned(), words[1].clone()]);
    (words, length)
}

/// Returns the name of a random key that clients write only with SET.
pub(crate) fn plain_key(random: &mut RandomSource) -> String {
    format!("p{}", random.random_below(PLAIN_KEY_COUNT))
}

/// Returns a command that adds many elements at once, so that the value switches to its large
/// encoding.
fn large_write_command(tag: &str, random: &mut RandomSource, values_issued: &mut u64) -> CommandWords {
    let (head, pairs) = random.pick_random(&[("RPUSH l*", false), ("SADD t*", false), ("HSET h*", true)]);
    let mut line = fill_template(head, tag, random, values_issued);
    for number in 0..150 {
        *values_issued += 1;
        if pairs {
            line.push(format!("f{number}"));
        }
        line.push(format!("v{values_issued}"));
    }
    line
}

/// Returns the commands that a client sends in one pipeline.
pub(crate) fn random_pipeline(random: &mut RandomSource, values_issued: &mut u64) -> Vec<CommandWords> {
    match random.random_below(100) {
        0..80 => (0..=random.random_below(3)).map(|_| single_command(random, values_issued)).collect(),
        80..92 => {
            let commands =
                (0..=random.random_below(4)).map(|_| single_command(random, values_issued)).collect();
            wrap_in_transaction(commands, random)
        }
        92..94 => vec![large_write_command("", random, values_issued)],
        94..99 => vec![script_command("", random, values_issued)],
        _ => {
            *values_issued += 1;
            let key = format!("p{}", random.random_below(PLAIN_KEY_COUNT));
            let call = to_words(&["FCALL", "put", "1", &key, &format!("v{values_issued}")]);
            vec![to_words(&["FUNCTION", "LOAD", "REPLACE", FUNCTION_LIBRARY]), call]
        }
    }
}

/// Like [`random_pipeline`], but all keys start with `tag` and are in one database.
pub(crate) fn pipeline_with_tag(
    tag: &str,
    random: &mut RandomSource,
    values_issued: &mut u64,
) -> Vec<CommandWords> {
    let single_command = |random: &mut RandomSource, issued: &mut u64| {
        let lines = &COMMAND_TEMPLATES[..COMMAND_TEMPLATES.len() - RARE_TEMPLATE_COUNT];
        let of_keys = |line: &&str| line.contains('*') && !line.starts_with("MOVE");
        let lines: Vec<&str> = lines.iter().copied().filter(of_keys).collect();
        fill_template(random.pick_random(&lines), tag, random, issued)
    };
    match random.random_below(100) {
        0..70 => (0..=random.random_below(2)).map(|_| single_command(random, values_issued)).collect(),
        70..88 => {
            let commands =
                (0..=random.random_below(3)).map(|_| single_command(random, values_issued)).collect();
            wrap_in_transaction(commands, random)
        }
        88..98 => vec![script_command(tag, random, values_issued)],
        _ => vec![large_write_command(tag, random, values_issued)],
    }
}

/// Splits a pipeline into single commands and whole transactions.
pub(crate) fn split_into_transactions(commands: Vec<CommandWords>) -> Vec<Vec<CommandWords>> {
    if commands[0][0] == "MULTI" {
        vec![commands]
    } else {
        commands.into_iter().map(|words| vec![words]).collect()
    }
}

fn to_words(line: &[&str]) -> CommandWords {
    line.iter().map(|word| (*word).to_owned()).collect()
}

fn wrap_in_transaction(commands: Vec<CommandWords>, random: &mut RandomSource) -> Vec<CommandWords> {
    let mut batch = vec![to_words(&["MULTI"])];
    batch.extend(commands);
    batch.push(to_words(&[if random.random_bool(90) { "EXEC" } else { "DISCARD" }]));
    batch
}

fn script_command(tag: &str, random: &mut RandomSource, values_issued: &mut u64) -> CommandWords {
    *values_issued += 1;
    let (list, number) = (
        format!("{tag}l{}", random.random_below(KEYS_PER_TYPE)),
        format!("{tag}n{}", random.random_below(KEYS_PER_TYPE)),
    );
    to_words(&["EVAL", PUSH_AND_INCREMENT_SCRIPT, "2", &list, &number, &format!("v{values_issued}")])
}
