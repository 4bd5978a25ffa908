//! What a parameter's value must look like, and how it is kept.

use std::net::IpAddr;

/// The kind of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterKind {
    /// `yes` or `no`.
    Switch,
    /// A number between these, both inclusive.
    Integer(i64, i64),
    /// A number that is brought to the nearest between these.
    Clamped(i64, i64),
    /// The same, written in octal (file modes).
    Octal,
    /// A number of bytes, with a unit if one likes (`64mb`).
    Memory(i64, i64),
    /// Bytes, or a part of `maxmemory` (`5%`).
    MemoryOrPercent,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One or more of these words.
    Choices(&'static [&'static str]),
    /// One word, any.
    Text,
    /// The name of a file without a path.
    FileName,
    /// A name in the DNS, or nothing.
    Hostname,
    /// A name that people give, or nothing: it stands between blanks, commas and equals signs in `nodes.conf`.
    PlainName,
    /// An address of either kind, or nothing.
    Ip,
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
            Self::Memory(min, max) => {
                bounded(memory(word).ok_or_else(|| "argument must be a memory value".to_owned())?, min, max)
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
            Self::Events => events(word),
            Self::Ip if word.is_empty() || word.parse::<IpAddr>().is_ok() => Ok(word.clone()),
            Self::Ip => Err("argument must be an IP address".to_owned()),
            _ => {
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
                | Self::Choices(_)
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
            Self::Choices(choices) => {
                let words: Result<Vec<String>, String> =
                    words.iter().map(|word| choice(word, choices)).collect();
                words.map(|words| words.join(" "))
            }
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

fn plain_name(word: &str) -> Result<String, String> {
    if word.len() > LONGEST_NAME {
        return Err("Names must be less than 256 characters".to_owned());
    }
    if !word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte)) {
        return Err(
            "Announced names may only contain alphanumeric characters, hyphens, underscores, dots or slashes"
                .to_owned(),
        );
    }
    Ok(word.to_owned())
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

fn memory_or_percent(word: &str) -> Result<String, String> {
    let fail = || "argument must be a memory or percent value".to_owned();
    match word.strip_suffix('%') {
        Some(percent) => match percent.parse::<u8>() {
            Ok(percent) if percent <= 100 => Ok(format!("{percent}%")),
            _ => Err(fail()),
        },
        None => memory(word).map(|bytes| bytes.to_string()).ok_or_else(fail),
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
            (ParameterKind::MemoryOrPercent, "5%", Ok("5%")),
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
}
