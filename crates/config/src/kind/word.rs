//! Values that are one word.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{Kind, Text, only};
use crate::choices::Choice;

/// `yes` or `no`.
#[derive(Debug)]
pub(crate) struct Switch;

/// `yes` or `no`.
pub(crate) const fn switch() -> Switch {
    Switch
}

impl Kind for Switch {
    type Value = bool;

    fn parse(&self, words: &[String], _: Option<&bool>) -> Result<bool, String> {
        match only(words)? {
            word if word.eq_ignore_ascii_case("yes") => Ok(true),
            word if word.eq_ignore_ascii_case("no") => Ok(false),
            _ => Err("argument must be 'yes' or 'no'".to_owned()),
        }
    }

    fn show(&self, value: &bool) -> String {
        if *value { "yes".to_owned() } else { "no".to_owned() }
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        super::listed(["yes", "no"])
    }
}

/// One of the words of a type.
#[derive(Debug)]
pub(crate) struct ChoiceOf<C>(PhantomData<fn() -> C>);

/// One of the words of a type.
pub(crate) const fn choice<C: Choice>() -> ChoiceOf<C> {
    ChoiceOf(PhantomData)
}

impl<C: Choice> Kind for ChoiceOf<C> {
    type Value = C;

    fn parse(&self, words: &[String], _: Option<&C>) -> Result<C, String> {
        chosen(only(words)?)
    }

    fn show(&self, value: &C) -> String {
        value.word().to_owned()
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        super::listed(C::WORDS.iter().map(|(word, _)| *word))
    }
}

/// The value of a word.
pub(super) fn chosen<C: Choice>(word: &str) -> Result<C, String> {
    C::read(word).ok_or_else(|| no_choice(C::WORDS.iter().map(|(word, _)| *word)))
}

pub(super) fn no_choice<'a>(words: impl Iterator<Item = &'a str>) -> String {
    format!("argument(s) must be one of the following: {}", words.collect::<Vec<_>>().join(", "))
}

/// One of these words; nothing depends on which, so they have no type.
#[derive(Debug)]
pub(crate) struct OneOf(&'static [&'static str]);

/// One of these words.
pub(crate) const fn one_of(words: &'static [&'static str]) -> OneOf {
    OneOf(words)
}

impl Kind for OneOf {
    type Value = &'static str;

    fn parse(&self, words: &[String], _: Option<&&'static str>) -> Result<&'static str, String> {
        let word = only(words)?;
        let found = self.0.iter().find(|known| known.eq_ignore_ascii_case(word));
        found.copied().ok_or_else(|| no_choice(self.0.iter().copied()))
    }

    fn show(&self, value: &&'static str) -> String {
        (*value).to_owned()
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        super::listed(self.0.iter().copied())
    }
}

/// A text in a certain form.
#[derive(Debug)]
pub(crate) struct TextOf {
    check: fn(&str) -> Result<(), &'static str>,
    /// The error for an empty text, where it must not be empty.
    refusal_of_empty: Option<&'static str>,
    /// A last touch to what was given.
    shape: fn(&str) -> Text,
    #[cfg(test)]
    description: &'static str,
}

impl TextOf {
    const fn new(check: fn(&str) -> Result<(), &'static str>, _description: &'static str) -> Self {
        Self {
            check,
            refusal_of_empty: None,
            shape: |word| word.into(),
            #[cfg(test)]
            description: _description,
        }
    }
}

/// Any word.
pub(crate) const fn text() -> TextOf {
    TextOf::new(|_| Ok(()), "string")
}

/// The path of a file or folder. `refusal` is the error for an empty one.
pub(crate) const fn path(refusal: &'static str) -> TextOf {
    TextOf { refusal_of_empty: Some(refusal), ..text() }
}

/// The name of a file in the data folder: not empty, and not a path.
pub(crate) const fn dump_file_name() -> TextOf {
    let check = |word: &str| no_path(word, "dbfilename can't be a path, just a filename");
    TextOf { refusal_of_empty: Some("dbfilename can't be empty"), ..TextOf::new(check, "file name") }
}

/// The name that the files of the append-only file begin with.
pub(crate) const fn append_file_name() -> TextOf {
    let check = |word: &str| no_path(word, "appendfilename can't be a path, just a filename");
    TextOf { refusal_of_empty: Some("appendfilename can't be empty"), ..TextOf::new(check, "file name") }
}

/// The name of the folder of the append-only file.
pub(crate) const fn append_folder_name() -> TextOf {
    let check = |word: &str| no_path(word, "appenddirname can't be a path, just a dirname");
    TextOf { refusal_of_empty: Some("appenddirname can't be empty"), ..TextOf::new(check, "directory name") }
}

fn no_path(word: &str, refusal: &'static str) -> Result<(), &'static str> {
    if word.contains('/') { Err(refusal) } else { Ok(()) }
}

/// The longest name that the cluster bus carries.
const LONGEST_NAME: usize = 255;

/// A name in the DNS, or nothing.
pub(crate) const fn hostname() -> TextOf {
    let check = |word: &str| {
        if word.len() > LONGEST_NAME {
            return Err("Hostnames must be less than 256 characters");
        }
        if !word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
            return Err("Hostnames may only contain alphanumeric characters, hyphens, underscores or dots");
        }
        Ok(())
    };
    TextOf::new(check, "host name")
}

/// Whether a text can stand in a line of `nodes.conf`.
fn is_plain(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/:".contains(&byte))
}

/// A name that people give, or nothing: it stands between blanks, commas and equals signs in `nodes.conf`.
pub(crate) const fn plain_name() -> TextOf {
    let check = |word: &str| {
        if word.len() > LONGEST_NAME {
            return Err("Names must be less than 256 characters");
        }
        if !is_plain(word) {
            return Err("Announced human node name contained invalid character");
        }
        Ok(())
    };
    TextOf::new(check, "name")
}

/// An availability zone: nodes of a cluster tell it to each other and keep it in `nodes.conf`, between commas.
pub(crate) const fn zone() -> TextOf {
    let check = |word: &str| {
        if word.len() > LONGEST_NAME {
            return Err("Availability zones must be less than 256 characters");
        }
        if !word.bytes().all(|byte| byte.is_ascii_graphic() && !b",=\"'\\".contains(&byte)) {
            return Err("Availability zones may not contain blanks, commas, quotes or equal signs");
        }
        Ok(())
    };
    TextOf::new(check, "zone name")
}

/// The names that stand in braces in `proc-title-template`, and whether each is something on every server.
const TITLE_VARIABLES: [(&str, bool); 7] = [
    ("title", false),
    ("listen-addr", true),
    ("server-mode", false),
    ("port", true),
    ("tls-port", true),
    ("config-file", true),
    ("unixsocket", false),
];

/// The name of the process, with names of variables in braces.
pub(crate) const fn title_template() -> TextOf {
    let check = |template: &str| match is_title(template) {
        true => Ok(()),
        false => Err("template format is invalid or contains unknown variables"),
    };
    TextOf::new(check, "template with names in braces")
}

/// Two braces are one. A title in which nothing need stand is none.
fn is_title(template: &str) -> bool {
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

/// Letters that name classes of events of keys.
pub(crate) const fn event_letters() -> TextOf {
    let check = |letters: &str| {
        let known = |letter| letter == 'A' || ALL_EVENTS.contains(letter) || OTHER_EVENTS.contains(letter);
        match letters.chars().all(known) {
            true => Ok(()),
            false => Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."),
        }
    };
    TextOf { shape: shortest, ..TextOf::new(check, "letters of classes of events") }
}

/// The classes that `A` stands for, and the letters that are not part of it, each in the order in which CONFIG GET
/// shows them.
const ALL_EVENTS: &str = "g$lshzxetd";
const OTHER_EVENTS: &str = "nKEm";

/// The letters as short as they can be, in one order.
fn shortest(letters: &str) -> Text {
    let all = letters.contains('A') || ALL_EVENTS.chars().all(|letter| letters.contains(letter));
    let mut shown = if all { "A".to_owned() } else { String::new() };
    let rest = ALL_EVENTS.chars().filter(|_| !all).chain(OTHER_EVENTS.chars());
    shown.extend(rest.filter(|letter| letters.contains(*letter)));
    shown.into()
}

impl Kind for TextOf {
    type Value = Text;

    fn parse(&self, words: &[String], _: Option<&Text>) -> Result<Text, String> {
        let word = only(words)?;
        if let (true, Some(refusal)) = (word.is_empty(), self.refusal_of_empty) {
            return Err(refusal.to_owned());
        }
        (self.check)(word)?;
        Ok((self.shape)(word))
    }

    fn show(&self, value: &Text) -> String {
        value.to_string()
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        self.description.to_owned()
    }
}

/// Any word; the empty one is none.
#[derive(Debug)]
pub(crate) struct OptionalText;

/// Any word; the empty one is none.
pub(crate) const fn optional() -> OptionalText {
    OptionalText
}

impl Kind for OptionalText {
    type Value = Option<Text>;

    fn parse(&self, words: &[String], _: Option<&Option<Text>>) -> Result<Option<Text>, String> {
        let word = only(words)?;
        Ok(Some(word).filter(|word| !word.is_empty()).map(Text::from))
    }

    fn show(&self, value: &Option<Text>) -> String {
        value.as_deref().unwrap_or_default().to_owned()
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        "string".to_owned()
    }
}

/// An address, or nothing.
#[derive(Debug)]
pub(crate) struct Address<A> {
    check: fn(&str) -> Result<(), &'static str>,
    otherwise: &'static str,
    of: PhantomData<fn() -> A>,
}

/// An address of IPv4, or nothing.
pub(crate) const fn ipv4() -> Address<Ipv4Addr> {
    Address { check: |_| Ok(()), otherwise: "Invalid IPv4 address", of: PhantomData }
}

/// An address of IPv6, or nothing.
pub(crate) const fn ipv6() -> Address<Ipv6Addr> {
    Address { check: |_| Ok(()), otherwise: "Invalid IPv6 address", of: PhantomData }
}

/// The longest address that the cluster bus carries.
const LONGEST_ADDRESS: usize = 45;

/// An address of either kind, or nothing. It stands in `nodes.conf`.
pub(crate) const fn announced_address() -> Address<IpAddr> {
    let check = |word: &str| {
        if word.len() > LONGEST_ADDRESS {
            return Err("cluster-announce-ip is too long");
        }
        if !is_plain(word) {
            return Err("cluster-announce-ip contains invalid character");
        }
        Ok(())
    };
    Address { check, otherwise: "argument must be an IP address", of: PhantomData }
}

impl<A: FromStr + ToString + Clone + PartialEq + std::fmt::Debug> Kind for Address<A> {
    type Value = Option<A>;

    fn parse(&self, words: &[String], _: Option<&Option<A>>) -> Result<Option<A>, String> {
        let word = only(words)?;
        (self.check)(word)?;
        if word.is_empty() {
            return Ok(None);
        }
        word.parse().map(Some).map_err(|_| self.otherwise.to_owned())
    }

    fn show(&self, value: &Option<A>) -> String {
        value.as_ref().map(A::to_string).unwrap_or_default()
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        "IP address".to_owned()
    }
}
