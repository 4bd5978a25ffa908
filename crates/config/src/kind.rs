//! What a parameter's value must look like, and how it is kept.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The kind of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterKind {
    /// `yes` or `no`.
    Switch,
    /// A number between these, both inclusive.
    Integer(i64, i64),
    /// A number that is brought to the nearest between these.
    Clamped(i64, i64),
    /// A number of bytes that is brought to at least this.
    AtLeast(i64),
    /// The same as a number, written in octal (file modes).
    Octal,
    /// A number of bytes, with a unit if one likes (`64mb`).
    Memory(i64, i64),
    /// Bytes, or a part of `maxmemory` (`5%`).
    MemoryOrPercent,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One word, any.
    Text,
    /// The name of a file without a path.
    FileName,
    /// A name in the DNS, or nothing.
    Hostname,
    /// A name that people give, or nothing: it stands between blanks, commas and equals signs in `nodes.conf`.
    PlainName,
    /// An address of either kind, or nothing. It stands in `nodes.conf`.
    AnnouncedAddress,
    /// An address of IPv4, or nothing.
    Ipv4,
    /// An address of IPv6, or nothing.
    Ipv6,
    /// What the process is called, with names of variables in braces.
    TitleTemplate,
    /// How a signal stops the server.
    ShutdownWords,
    /// Letters that name classes of events of keys.
    Events,
    /// Numbers from 0 to 100.
    Percentiles,
    /// Three numbers.
    ScoreAdjustments,
    /// Several words.
    Words,
    /// Pairs of seconds and changes.
    Save,
    /// `class hard soft seconds`, once or more.
    OutputLimits,
}

impl ParameterKind {
    /// Checks the words given for a parameter and brings them into the form that CONFIG GET shows.
    /// `before` is the value so far: some parameters add to it.
    pub(crate) fn parse(self, words: &[String], before: &str) -> Result<String, String> {
        let [word] = words else {
            return match self.takes_many() {
                true => self.parse_many(words, before),
                false => Err("wrong number of arguments".to_owned()),
            };
        };
        match self {
            Self::Switch => switch(word),
            Self::Integer(min, max) => bounded(integer(word)?, min, max),
            Self::Clamped(min, max) => {
                bounded(integer(word)?, 0, i64::from(i32::MAX))?;
                Ok(integer(word)?.clamp(min, max).to_string())
            }
            Self::Octal => match i64::from_str_radix(word, 8) {
                Ok(value) if (0..=0o777).contains(&value) => Ok(format!("{value:o}")),
                _ => Err("argument couldn't be parsed into an integer".to_owned()),
            },
            Self::Memory(min, max) => bounded(memory_from(word, min)?, min, max),
            Self::AtLeast(least) => {
                let bytes = memory_from(word, 1)?;
                bounded(bytes, 1, i64::MAX)?;
                Ok(bytes.max(least).to_string())
            }
            Self::MemoryOrPercent => memory_or_percent(word),
            Self::Choice(choices) => choice(word, choices),
            Self::Text => Ok(word.clone()),
            Self::FileName if word.contains('/') => {
                Err("dbfilename can't be a path, just a filename".to_owned())
            }
            Self::FileName => Ok(word.clone()),
            Self::Hostname => hostname(word),
            Self::PlainName => plain_name(word),
            Self::AnnouncedAddress => announced_address(word),
            Self::Ipv4 => address::<Ipv4Addr>(word, "Invalid IPv4 address"),
            Self::Ipv6 => address::<Ipv6Addr>(word, "Invalid IPv6 address"),
            Self::TitleTemplate => title_template(word),
            Self::Events => events(word),
            Self::OutputLimits if word.is_empty() => Ok(before.to_owned()),
            Self::Percentiles if word.is_empty() => Ok(String::new()),
            // A blank too many is an empty word.
            Self::Percentiles | Self::ShutdownWords => {
                self.parse_many(&word.split(' ').map(str::to_owned).collect::<Vec<_>>(), before)
            }
            Self::Words | Self::Save | Self::OutputLimits | Self::ScoreAdjustments => {
                // CONFIG SET gives several words as one argument.
                let words: Vec<String> = word.split_ascii_whitespace().map(str::to_owned).collect();
                self.parse_many(&words, before)
            }
        }
    }

    /// Whether a value may have several words.
    fn takes_many(self) -> bool {
        matches!(
            self,
            Self::Words
                | Self::ShutdownWords
                | Self::Percentiles
                | Self::Save
                | Self::OutputLimits
                | Self::ScoreAdjustments
        )
    }

    fn parse_many(self, words: &[String], before: &str) -> Result<String, String> {
        match self {
            Self::Save => save(words),
            Self::Percentiles => percentiles(words),
            Self::ShutdownWords => shutdown_words(words),
            Self::OutputLimits => output_limits(words, before),
            Self::ScoreAdjustments => score_adjustments(words),
            _ => Ok(words.join(" ")),
        }
    }
}

fn switch(word: &str) -> Result<String, String> {
    match word.to_ascii_lowercase().as_str() {
        lower @ ("yes" | "no") => Ok(lower.to_owned()),
        _ => Err("argument must be 'yes' or 'no'".to_owned()),
    }
}

/// The longest name that the cluster bus carries.
const LONGEST_NAME: usize = 255;

fn hostname(word: &str) -> Result<String, String> {
    if word.len() > LONGEST_NAME {
        return Err("Hostnames must be less than 256 characters".to_owned());
    }
    if !word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err(
            "Hostnames may only contain alphanumeric characters, hyphens, underscores or dots".to_owned()
        );
    }
    Ok(word.to_owned())
}

/// Whether a text can stand in a line of `nodes.conf`.
fn is_plain(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/:".contains(&byte))
}

fn plain_name(word: &str) -> Result<String, String> {
    if word.len() > LONGEST_NAME {
        return Err("Names must be less than 256 characters".to_owned());
    }
    if !is_plain(word) {
        return Err("Announced human node name contained invalid character".to_owned());
    }
    Ok(word.to_owned())
}

/// The longest address that the cluster bus carries.
const LONGEST_ADDRESS: usize = 45;

fn announced_address(word: &str) -> Result<String, String> {
    if word.len() > LONGEST_ADDRESS {
        return Err("cluster-announce-ip is too long".to_owned());
    }
    if !is_plain(word) {
        return Err("cluster-announce-ip contains invalid character".to_owned());
    }
    address::<IpAddr>(word, "argument must be an IP address")
}

fn address<A: FromStr>(word: &str, otherwise: &str) -> Result<String, String> {
    match word.is_empty() || word.parse::<A>().is_ok() {
        true => Ok(word.to_owned()),
        false => Err(otherwise.to_owned()),
    }
}

/// What stands in braces in `proc-title-template`, and whether it is something on every server.
const TITLE_VARIABLES: [(&str, bool); 7] = [
    ("title", false),
    ("listen-addr", true),
    ("server-mode", false),
    ("port", true),
    ("tls-port", true),
    ("config-file", true),
    ("unixsocket", false),
];

/// Two braces are one. A title in which nothing need stand is none.
fn title_template(template: &str) -> Result<String, String> {
    let wrong = || "template format is invalid or contains unknown variables".to_owned();
    let (mut rest, mut shows) = (template, false);
    while let Some((text, after)) = rest.split_once('{') {
        shows |= !text.trim().is_empty();
        if let Some(after) = after.strip_prefix('{') {
            (rest, shows) = (after, true);
            continue;
        }
        let (name, after) = after.split_once('}').ok_or_else(wrong)?;
        let known = TITLE_VARIABLES.iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
        (rest, shows) = (after, shows || known.1);
    }
    if shows || !rest.trim().is_empty() { Ok(template.to_owned()) } else { Err(wrong()) }
}

/// The words of `shutdown-on-sigterm` and `-sigint`, in the order in which CONFIG GET shows them.
pub(crate) const SHUTDOWN_WORDS: [&str; 7] =
    ["default", "save", "nosave", "now", "force", "safe", "failover"];

fn shutdown_words(words: &[String]) -> Result<String, String> {
    let chosen: Vec<String> =
        words.iter().map(|word| choice(word, &SHUTDOWN_WORDS)).collect::<Result<_, _>>()?;
    let has = |word: &str| chosen.iter().any(|chosen| chosen == word);
    if has("save") && has("nosave") {
        return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".to_owned());
    }
    let shown: Vec<&str> = SHUTDOWN_WORDS.into_iter().skip(1).filter(|word| has(word)).collect();
    Ok(if shown.is_empty() { "default".to_owned() } else { shown.join(" ") })
}

/// What `A` stands for, and the letters that are not part of it, each in the order in which CONFIG GET shows them.
const ALL_EVENTS: &str = "g$lshzxetd";
const OTHER_EVENTS: &str = "nKEm";

/// The letters as short as they can be, in one order.
fn events(letters: &str) -> Result<String, String> {
    if letters
        .chars()
        .any(|letter| letter != 'A' && !ALL_EVENTS.contains(letter) && !OTHER_EVENTS.contains(letter))
    {
        return Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned());
    }
    let all = letters.contains('A') || ALL_EVENTS.chars().all(|letter| letters.contains(letter));
    let mut shown = if all { "A".to_owned() } else { String::new() };
    let rest = ALL_EVENTS.chars().filter(|_| !all).chain(OTHER_EVENTS.chars());
    shown.extend(rest.filter(|letter| letters.contains(*letter)));
    Ok(shown)
}

fn integer(word: &str) -> Result<i64, String> {
    resp::parse_i64(word.as_bytes()).ok_or_else(|| "argument couldn't be parsed into an integer".to_owned())
}

fn percentiles(words: &[String]) -> Result<String, String> {
    let values: Result<Vec<f64>, _> = words.iter().map(|word| word.parse()).collect();
    let values = values.map_err(|_| "Invalid latency-tracking-info-percentiles parameters".to_owned())?;
    if values.iter().any(|value| value.is_nan()) {
        return Err("Invalid latency-tracking-info-percentiles parameters".to_owned());
    }
    if values.iter().all(|value| (0.0..=100.0).contains(value)) {
        return Ok(values.iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
    }
    Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".to_owned())
}

fn choice(word: &str, choices: &[&str]) -> Result<String, String> {
    match choices.iter().find(|choice| choice.eq_ignore_ascii_case(word)) {
        Some(choice) => Ok((*choice).to_owned()),
        None => Err(format!("argument(s) must be one of the following: {}", choices.join(", "))),
    }
}

fn bounded(value: i64, min: i64, max: i64) -> Result<String, String> {
    if (min..=max).contains(&value) {
        Ok(value.to_string())
    } else {
        Err(format!("argument must be between {min} and {max} inclusive"))
    }
}

/// Reads `10`, `10b`, `1k` (1000), `1kb` (1024), `1m`, `1mb`, `1g`, `1gb`, in any case.
pub(crate) fn memory(word: &str) -> Option<i64> {
    let lower = word.to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let unit: i64 = match &lower[digits..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1024,
        "m" => 1000 * 1000,
        "mb" => 1024 * 1024,
        "g" => 1000 * 1000 * 1000,
        "gb" => 1024 * 1024 * 1024,
        _ => return None,
    };
    lower[..digits].parse::<i64>().ok()?.checked_mul(unit)
}

/// The same as a parameter's value, where nothing is nought. A minimum below nought lets plain numbers be so.
fn memory_from(word: &str, min: i64) -> Result<i64, String> {
    let signed = || resp::parse_i64(word.as_bytes()).filter(|_| min < 0);
    let bytes = if word.is_empty() { Some(0) } else { memory(word).or_else(signed) };
    bytes.ok_or_else(|| "argument must be a memory value".to_owned())
}

fn memory_or_percent(word: &str) -> Result<String, String> {
    let fail = || "argument must be a memory or percent value".to_owned();
    match word.strip_suffix('%') {
        Some(percent) => match percent.parse::<u32>() {
            Ok(percent) if percent <= 100 => Ok(format!("{percent}%")),
            Ok(_) => Err("percentage argument must be less or equal to 100".to_owned()),
            Err(_) => Err(fail()),
        },
        None => memory_from(word, 0).map(|bytes| bytes.to_string()).map_err(|_| fail()),
    }
}

fn save(words: &[String]) -> Result<String, String> {
    if !words.len().is_multiple_of(2) {
        return Err("Invalid save parameters".to_owned());
    }
    for pair in words.chunks(2) {
        let numbers = (pair[0].parse::<i64>(), pair[1].parse::<i64>());
        if !matches!(numbers, (Ok(1..), Ok(0..))) {
            return Err("Invalid save parameters".to_owned());
        }
    }
    Ok(words.join(" "))
}

fn score_adjustments(words: &[String]) -> Result<String, String> {
    if words.len() != 3 {
        return Err("wrong number of arguments".to_owned());
    }
    let fits = |word: &String| word.parse::<i32>().is_ok_and(|value| (-2000..=2000).contains(&value));
    if words.iter().all(fits) {
        Ok(words.join(" "))
    } else {
        Err("Invalid oom-score-adj-values, elements must be between -2000 and 2000.".to_owned())
    }
}

const CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

fn output_limits(words: &[String], before: &str) -> Result<String, String> {
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
    }
    let mut limits: Vec<String> = before.split(' ').map(str::to_owned).collect();
    for limit in words.chunks(4) {
        let class = match limit[0].to_ascii_lowercase().as_str() {
            "replica" => "slave".to_owned(),
            class => class.to_owned(),
        };
        let Some(index) = CLASSES.iter().position(|known| *known == class) else {
            return Err("Invalid client class specified in buffer limit configuration.".to_owned());
        };
        let (hard, soft, seconds) = (memory(&limit[1]), memory(&limit[2]), limit[3].parse::<i64>());
        let (Some(hard), Some(soft), Ok(seconds @ 0..)) = (hard, soft, seconds) else {
            return Err(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration.".to_owned()
            );
        };
        let at = index * 4;
        limits[at + 1..at + 4].clone_from_slice(&[hard, soft, seconds].map(|number| number.to_string()));
    }
    Ok(limits.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_redis_reads_them() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let limits = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        let table: &[(ParameterKind, &str, Result<&str, &str>)] = &[
            (ParameterKind::Switch, "YES", Ok("yes")),
            (ParameterKind::Switch, "1", Err("argument must be 'yes' or 'no'")),
            (ParameterKind::Integer(0, 9), "7", Ok("7")),
            (ParameterKind::Integer(0, 9), "10", Err("argument must be between 0 and 9 inclusive")),
            (ParameterKind::Integer(0, 9), "x", Err("argument couldn't be parsed into an integer")),
            (ParameterKind::Clamped(1, 500), "10000", Ok("500")),
            (ParameterKind::Clamped(1, 500), "0", Ok("1")),
            (
                ParameterKind::Clamped(1, 500),
                "-1",
                Err("argument must be between 0 and 2147483647 inclusive"),
            ),
            (ParameterKind::Memory(0, i64::MAX), "2mb", Ok("2097152")),
            (ParameterKind::Memory(0, i64::MAX), "2m", Ok("2000000")),
            (ParameterKind::Memory(0, i64::MAX), "2x", Err("argument must be a memory value")),
            (
                ParameterKind::Memory(1, i64::MAX),
                "",
                Err("argument must be between 1 and 9223372036854775807 inclusive"),
            ),
            (ParameterKind::Memory(-1, i64::MAX), "-1", Ok("-1")),
            (ParameterKind::Memory(0, i64::MAX), "-1", Err("argument must be a memory value")),
            (ParameterKind::AtLeast(16_384), "1", Ok("16384")),
            (ParameterKind::AtLeast(16_384), "1mb", Ok("1048576")),
            (ParameterKind::MemoryOrPercent, "5%", Ok("5%")),
            (ParameterKind::MemoryOrPercent, "101%", Err("percentage argument must be less or equal to 100")),
            (ParameterKind::ShutdownWords, "force SAVE default", Ok("save force")),
            (ParameterKind::ShutdownWords, "default", Ok("default")),
            (
                ParameterKind::ShutdownWords,
                "save nosave",
                Err("shutdown options SAVE and NOSAVE can't be used simultaneously"),
            ),
            (ParameterKind::Choice(&["a", "b"]), "B", Ok("b")),
            (ParameterKind::Choice(&["a", "b"]), "c", Err("argument(s) must be one of the following: a, b")),
            (ParameterKind::Octal, "755", Ok("755")),
            (ParameterKind::Events, "", Ok("")),
            (ParameterKind::Events, "KEA", Ok("AKE")),
            (ParameterKind::Events, "Exl", Ok("lxE")),
            (ParameterKind::Events, "mg$lshzxetdKE", Ok("AKEm")),
            (ParameterKind::Events, "AmnE", Ok("AnEm")),
            (ParameterKind::Events, "Kq", Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")),
            (ParameterKind::Words, "* -::*", Ok("* -::*")),
            (ParameterKind::Save, "900 1 60 10", Ok("900 1 60 10")),
            (ParameterKind::Save, "900", Err("Invalid save parameters")),
            (ParameterKind::Save, "0 1", Err("Invalid save parameters")),
            (
                ParameterKind::OutputLimits,
                "replica 1mb 2 3",
                Ok("normal 0 0 0 slave 1048576 2 3 pubsub 33554432 8388608 60"),
            ),
            (
                ParameterKind::OutputLimits,
                "nobody 1 2 3",
                Err("Invalid client class specified in buffer limit configuration."),
            ),
        ];
        for (kind, text, expected) in table {
            let parsed = kind.parse(&words(text), limits);
            assert_eq!(parsed.as_deref().map_err(String::as_str), *expected, "{kind:?} {text}");
        }
    }

    #[test]
    fn a_title_names_variables_that_there_are_and_is_not_empty() {
        for good in ["plain", "{{title}}", "{title} {port}", "x{title}", "{{", "{{}", "}}", "{listen-addr}"] {
            assert_eq!(title_template(good).as_deref(), Ok(good));
        }
        for bad in
            ["", " ", "{title}", "{nosuch} x", "{title", "{title} {", "{}", "{server-mode}", "{ title} x"]
        {
            assert!(title_template(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_that_is_none_says_what_is_wrong_with_it() {
        for (word, reason) in [
            ("a b", "cluster-announce-ip contains invalid character"),
            ("1.2.3", "argument must be an IP address"),
            (&"1".repeat(46), "cluster-announce-ip is too long"),
        ] {
            assert_eq!(announced_address(word), Err(reason.to_owned()));
        }
        assert_eq!(announced_address("2001:db8::1").as_deref(), Ok("2001:db8::1"));
    }
}
