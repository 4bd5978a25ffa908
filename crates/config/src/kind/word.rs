//! Value types of parameters with a single word.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{Text, ValueKind, single_argument};
use crate::choices::Choice;

/// A boolean, `yes` or `no`.
#[derive(Debug)]
pub(crate) struct YesNoKind;

/// Accepts `yes` or `no`.
pub(crate) const fn yes_no() -> YesNoKind {
    YesNoKind
}

impl ValueKind for YesNoKind {
    type Value = bool;

    fn parse(&self, words: &[String], _: Option<&bool>) -> Result<bool, String> {
        match single_argument(words)? {
            word if word.eq_ignore_ascii_case("yes") => Ok(true),
            word if word.eq_ignore_ascii_case("no") => Ok(false),
            _ => Err("argument must be 'yes' or 'no'".to_owned()),
        }
    }

    fn format(&self, value: &bool) -> String {
        if *value { "yes".to_owned() } else { "no".to_owned() }
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        super::format_word_list(["yes", "no"])
    }
}

/// A value that is written as one of the words of the enum `C`.
#[derive(Debug)]
pub(crate) struct EnumWordKind<C>(PhantomData<fn() -> C>);

/// Accepts the words of the enum `C`, case-insensitively.
pub(crate) const fn enum_word<C: Choice>() -> EnumWordKind<C> {
    EnumWordKind(PhantomData)
}

impl<C: Choice> ValueKind for EnumWordKind<C> {
    type Value = C;

    fn parse(&self, words: &[String], _: Option<&C>) -> Result<C, String> {
        parse_choice(single_argument(words)?)
    }

    fn format(&self, value: &C) -> String {
        value.as_word().to_owned()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        super::format_word_list(C::WORDS.iter().map(|(word, _)| *word))
    }
}

/// Looks up a word of an enum. The error lists all valid words.
pub(super) fn parse_choice<C: Choice>(word: &str) -> Result<C, String> {
    C::parse(word).ok_or_else(|| invalid_choice_error(C::WORDS.iter().map(|(word, _)| *word)))
}

pub(super) fn invalid_choice_error<'a>(words: impl Iterator<Item = &'a str>) -> String {
    format!("argument(s) must be one of the following: {}", words.collect::<Vec<_>>().join(", "))
}

/// One of several words. There is no enum type for them, because no code depends on the value.
#[derive(Debug)]
pub(crate) struct FixedWordKind(&'static [&'static str]);

/// Accepts one of the given words.
pub(crate) const fn fixed_word(words: &'static [&'static str]) -> FixedWordKind {
    FixedWordKind(words)
}

impl ValueKind for FixedWordKind {
    type Value = &'static str;

    fn parse(&self, words: &[String], _: Option<&&'static str>) -> Result<&'static str, String> {
        let word = single_argument(words)?;
        let found = self.0.iter().find(|known| known.eq_ignore_ascii_case(word));
        found.copied().ok_or_else(|| invalid_choice_error(self.0.iter().copied()))
    }

    fn format(&self, value: &&'static str) -> String {
        (*value).to_owned()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        super::format_word_list(self.0.iter().copied())
    }
}

/// Text that is validated before it is accepted.
#[derive(Debug)]
pub(crate) struct CheckedTextKind {
    check: fn(&str) -> Result<(), &'static str>,
    /// The error for an empty text, or `None` if the text may be empty.
    empty_error: Option<&'static str>,
    /// Converts a valid text to its normal form.
    normalize: fn(&str) -> Text,
    #[cfg(test)]
    description: &'static str,
}

impl CheckedTextKind {
    const fn new(check: fn(&str) -> Result<(), &'static str>, _description: &'static str) -> Self {
        Self {
            check,
            empty_error: None,
            normalize: |word| word.into(),
            #[cfg(test)]
            description: _description,
        }
    }
}

/// Accepts any word.
pub(crate) const fn text() -> CheckedTextKind {
    CheckedTextKind::new(|_| Ok(()), "string")
}

/// Accepts a path that is not empty. `empty_error` is the error for an empty path.
pub(crate) const fn path(empty_error: &'static str) -> CheckedTextKind {
    CheckedTextKind { empty_error: Some(empty_error), ..text() }
}

/// Accepts the name of a file in the data directory: not empty, and without a directory.
pub(crate) const fn dump_file_name() -> CheckedTextKind {
    let check = |word: &str| reject_path(word, "dbfilename can't be a path, just a filename");
    CheckedTextKind {
        empty_error: Some("dbfilename can't be empty"),
        ..CheckedTextKind::new(check, "file name")
    }
}

/// Accepts the base name of the AOF's files.
pub(crate) const fn append_file_name() -> CheckedTextKind {
    let check = |word: &str| reject_path(word, "appendfilename can't be a path, just a filename");
    CheckedTextKind {
        empty_error: Some("appendfilename can't be empty"),
        ..CheckedTextKind::new(check, "file name")
    }
}

/// Accepts the name of the AOF directory.
pub(crate) const fn append_directory_name() -> CheckedTextKind {
    let check = |word: &str| reject_path(word, "appenddirname can't be a path, just a dirname");
    CheckedTextKind {
        empty_error: Some("appenddirname can't be empty"),
        ..CheckedTextKind::new(check, "directory name")
    }
}

fn reject_path(word: &str, error: &'static str) -> Result<(), &'static str> {
    if word.contains('/') { Err(error) } else { Ok(()) }
}

/// Maximum length of a host name on the cluster bus.
const MAX_HOSTNAME_LEN: usize = 255;

/// Accepts a DNS host name, or an empty text for none.
pub(crate) const fn hostname() -> CheckedTextKind {
    let check = |word: &str| {
        if word.len() > MAX_HOSTNAME_LEN {
            return Err("Hostnames must be less than 256 characters");
        }
        if !word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
            return Err("Hostnames may only contain alphanumeric characters, hyphens, underscores or dots");
        }
        Ok(())
    };
    CheckedTextKind::new(check, "host name")
}

/// Whether the text can be written to `nodes.conf` without breaking its format.
fn is_safe_in_nodes_conf(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/:".contains(&byte))
}

/// Accepts a human-readable node name, or an empty text for none. In `nodes.conf` the name is delimited by spaces,
/// commas and equals signs.
pub(crate) const fn node_name() -> CheckedTextKind {
    let check = |word: &str| {
        if word.len() > MAX_HOSTNAME_LEN {
            return Err("Names must be less than 256 characters");
        }
        if !is_safe_in_nodes_conf(word) {
            return Err("Announced human node name contained invalid character");
        }
        Ok(())
    };
    CheckedTextKind::new(check, "name")
}

/// Accepts the name of an availability zone, or an empty text for none. Nodes gossip the zone and store it in
/// `nodes.conf` between commas.
pub(crate) const fn availability_zone() -> CheckedTextKind {
    let check = |word: &str| {
        if word.len() > MAX_HOSTNAME_LEN {
            return Err("Availability zones must be less than 256 characters");
        }
        if !word.bytes().all(|byte| byte.is_ascii_graphic() && !b",=\"'\\".contains(&byte)) {
            return Err("Availability zones may not contain blanks, commas, quotes or equal signs");
        }
        Ok(())
    };
    CheckedTextKind::new(check, "zone name")
}

/// Variables of `proc-title-template`, and whether each is non-empty on every server.
const TITLE_VARIABLES: [(&str, bool); 7] = [
    ("title", false),
    ("listen-addr", true),
    ("server-mode", false),
    ("port", true),
    ("tls-port", true),
    ("config-file", true),
    ("unixsocket", false),
];

/// Accepts a process title with variables in braces.
pub(crate) const fn process_title() -> CheckedTextKind {
    let check = |template: &str| match is_valid_title(template) {
        true => Ok(()),
        false => Err("template format is invalid or contains unknown variables"),
    };
    CheckedTextKind::new(check, "template with names in braces")
}

/// Checks a title template. A doubled brace stands for a literal brace. A template that could expand to an empty title
/// is invalid.
fn is_valid_title(template: &str) -> bool {
    let (mut rest, mut shows) = (template, false);
    while let Some((text, after)) = rest.split_once('{') {
        shows |= !text.trim().is_empty();
        if let Some(after) = after.strip_prefix('{') {
            (rest, shows) = (after, true);
            continue;
        }
        let Some((name, after)) = after.split_once('}') else { return false };
        let Some((_, always)) = TITLE_VARIABLES.iter().find(|(known, _)| *known == name) else {
            return false;
        };
        (rest, shows) = (after, shows || *always);
    }
    shows || !rest.trim().is_empty()
}

/// Accepts the letters of keyspace event classes (`notify-keyspace-events`).
pub(crate) const fn event_letters() -> CheckedTextKind {
    let check = |letters: &str| {
        let known = |letter| letter == 'A' || ALL_EVENTS.contains(letter) || OTHER_EVENTS.contains(letter);
        match letters.chars().all(known) {
            true => Ok(()),
            false => Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."),
        }
    };
    CheckedTextKind { normalize: normalize_events, ..CheckedTextKind::new(check, "letters of event classes") }
}

/// The event classes that `A` includes, in the order of CONFIG GET.
const ALL_EVENTS: &str = "g$lshzxetd";
/// The event classes that `A` does not include, in the order of CONFIG GET.
const OTHER_EVENTS: &str = "nKEm";

/// Normalizes event letters to the shortest equivalent form.
fn normalize_events(letters: &str) -> Text {
    let all = letters.contains('A') || ALL_EVENTS.chars().all(|letter| letters.contains(letter));
    let mut shown = if all { "A".to_owned() } else { String::new() };
    let rest = ALL_EVENTS.chars().filter(|_| !all).chain(OTHER_EVENTS.chars());
    shown.extend(rest.filter(|letter| letters.contains(*letter)));
    shown.into()
}

impl ValueKind for CheckedTextKind {
    type Value = Text;

    fn parse(&self, words: &[String], _: Option<&Text>) -> Result<Text, String> {
        let word = single_argument(words)?;
        if let (true, Some(refusal)) = (word.is_empty(), self.empty_error) {
            return Err(refusal.to_owned());
        }
        (self.check)(word)?;
        Ok((self.normalize)(word))
    }

    fn format(&self, value: &Text) -> String {
        value.to_string()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        self.description.to_owned()
    }
}

/// Text, where an empty text means that the parameter is unset.
#[derive(Debug)]
pub(crate) struct OptionalTextKind;

/// Accepts any text; an empty text means that the parameter is unset.
pub(crate) const fn optional_text() -> OptionalTextKind {
    OptionalTextKind
}

impl ValueKind for OptionalTextKind {
    type Value = Option<Text>;

    fn parse(&self, words: &[String], _: Option<&Option<Text>>) -> Result<Option<Text>, String> {
        let word = single_argument(words)?;
        Ok(Some(word).filter(|word| !word.is_empty()).map(Text::from))
    }

    fn format(&self, value: &Option<Text>) -> String {
        value.as_deref().unwrap_or_default().to_owned()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "string".to_owned()
    }
}

/// An optional IP address.
#[derive(Debug)]
pub(crate) struct OptionalAddressKind<A> {
    check: fn(&str) -> Result<(), &'static str>,
    invalid_error: &'static str,
    address_type: PhantomData<fn() -> A>,
}

/// Accepts an IPv4 address, or an empty text for none.
pub(crate) const fn ipv4() -> OptionalAddressKind<Ipv4Addr> {
    OptionalAddressKind {
        check: |_| Ok(()),
        invalid_error: "Invalid IPv4 address",
        address_type: PhantomData,
    }
}

/// Accepts an IPv6 address, or an empty text for none.
pub(crate) const fn ipv6() -> OptionalAddressKind<Ipv6Addr> {
    OptionalAddressKind {
        check: |_| Ok(()),
        invalid_error: "Invalid IPv6 address",
        address_type: PhantomData,
    }
}

/// Maximum length of an address on the cluster bus.
const MAX_ADDRESS_LEN: usize = 45;

/// Accepts an IPv4 or IPv6 address, or an empty text for none. The node stores the address in `nodes.conf`.
pub(crate) const fn announced_address() -> OptionalAddressKind<IpAddr> {
    let check = |word: &str| {
        if word.len() > MAX_ADDRESS_LEN {
            return Err("cluster-announce-ip is too long");
        }
        if !is_safe_in_nodes_conf(word) {
            return Err("cluster-announce-ip contains invalid character");
        }
        Ok(())
    };
    OptionalAddressKind { check, invalid_error: "argument must be an IP address", address_type: PhantomData }
}

impl<A: FromStr + ToString + Clone + PartialEq + std::fmt::Debug> ValueKind for OptionalAddressKind<A> {
    type Value = Option<A>;

    fn parse(&self, words: &[String], _: Option<&Option<A>>) -> Result<Option<A>, String> {
        let word = single_argument(words)?;
        (self.check)(word)?;
        if word.is_empty() {
            return Ok(None);
        }
        word.parse().map(Some).map_err(|_| self.invalid_error.to_owned())
    }

    fn format(&self, value: &Option<A>) -> String {
        value.as_ref().map(A::to_string).unwrap_or_default()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "IP address".to_owned()
    }
}
