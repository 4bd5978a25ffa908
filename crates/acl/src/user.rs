//! A user: flags, passwords, a first selector, and further ones that admit what the first does not.

use crate::password::Hashed;
use crate::selector::{Channel, Denial, Grammar, Request, Selector};

/// Why a rule was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// It has no meaning.
    #[error("Syntax error")]
    Syntax,
    /// It names no command and no category there is.
    #[error("Unknown command or category name in ACL")]
    Unknown,
    /// It allows a first argument of a subcommand.
    #[error("Allowing first-arg of a subcommand is not supported")]
    FirstArgumentOfSubcommand,
    /// It adds a key pattern where all keys are allowed.
    #[error(
        "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
         effect. Try 'resetkeys' to start with an empty list of patterns"
    )]
    KeysAfterAll,
    /// It adds a channel pattern where all channels are allowed.
    #[error(
        "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
         effect. Try 'resetchannels' to start with an empty list of channels"
    )]
    ChannelsAfterAll,
    /// It takes away a password that the user does not have.
    #[error("The password you are trying to remove from the user does not exist")]
    NoSuchPassword,
    /// It gives a password's sum that is none.
    #[error(
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
    )]
    BadHash,
    /// It names a database that cannot be.
    #[error("The provided database ID is out of range")]
    DatabaseRange,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    enabled: bool,
    /// Any password will do.
    no_password: bool,
    passwords: Vec<Hashed>,
    first: Selector,
    more: Vec<Selector>,
}

impl User {
    /// A user who cannot log in, and may do nothing but what `open_channels` says.
    pub(crate) fn new(open_channels: bool) -> Self {
        Self {
            enabled: false,
            no_password: false,
            passwords: Vec::new(),
            first: Selector::new(open_channels),
            more: Vec::new(),
        }
    }

    /// The user `default` of a new server: everybody, and allowed everything.
    pub(crate) fn everybody(grammar: Grammar<'_>) -> Self {
        let mut user = Self::new(true);
        for rule in [&b"on"[..], b"nopass", b"~*", b"+@all"] {
            user.apply(grammar, rule).expect("these are rules");
        }
        user
    }

    /// Applies one rule. What is refused may still have changed the user: the caller works on a copy.
    ///
    /// # Errors
    /// Why the rule is refused.
    pub(crate) fn apply(&mut self, grammar: Grammar<'_>, rule: &[u8]) -> Result<(), RuleError> {
        match rule.to_ascii_lowercase().as_slice() {
            b"" => {}
            b"on" => self.enabled = true,
            b"off" => self.enabled = false,
            b"nopass" => {
                self.no_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.no_password = false;
                self.passwords.clear();
            }
            // Redis 7's rules about RESTORE: payloads are always looked through.
            b"sanitize-payload" | b"skip-sanitize-payload" => {}
            b"clearselectors" => self.more.clear(),
            b"reset" => *self = Self::new(grammar.open_channels),
            _ => return self.apply_marked(grammar, rule),
        }
        Ok(())
    }

    /// A rule that begins with a mark.
    fn apply_marked(&mut self, grammar: Grammar<'_>, rule: &[u8]) -> Result<(), RuleError> {
        let from_hex = |text| Hashed::from_hex(text).ok_or(RuleError::BadHash);
        match (rule[0], &rule[1..]) {
            (b'>', password) => self.add_password(Hashed::of(password)),
            (b'#', hash) => self.add_password(from_hex(hash)?),
            (b'<', password) => return self.remove_password(&Hashed::of(password)),
            (b'!', hash) => return self.remove_password(&from_hex(hash)?),
            (b'(', rules) if rule.ends_with(b")") => {
                let mut selector = Selector::new(grammar.open_channels);
                let words = rules[..rules.len() - 1].split(u8::is_ascii_whitespace);
                for word in words.filter(|word| !word.is_empty()) {
                    selector.apply(grammar, word).unwrap_or(Err(RuleError::Syntax))?;
                }
                self.more.push(selector);
            }
            _ => return self.first.apply(grammar, rule).unwrap_or(Err(RuleError::Syntax)),
        }
        Ok(())
    }

    fn add_password(&mut self, password: Hashed) {
        self.no_password = false;
        if !self.passwords.contains(&password) {
            self.passwords.push(password);
        }
    }

    fn remove_password(&mut self, password: &Hashed) -> Result<(), RuleError> {
        let place = self.passwords.iter().position(|known| known == password);
        self.passwords.remove(place.ok_or(RuleError::NoSuchPassword)?);
        Ok(())
    }

    /// Has this password, or none, admit the user: `requirepass`.
    pub fn set_only_password(&mut self, password: &[u8]) {
        self.no_password = password.is_empty();
        self.passwords.clear();
        if !password.is_empty() {
            self.add_password(Hashed::of(password));
        }
    }

    /// Whether the user may do whatever there is to do: nothing about a request need be looked at.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.selectors().any(Selector::admits_all)
    }

    /// Whether the user may read every key there is by this request.
    #[must_use]
    pub fn may_read_all(&self, request: &Request<'_>) -> bool {
        self.selectors().any(|selector| selector.opens_all_keys() && selector.check(request).is_ok())
    }

    /// Whether anybody can log in as the user.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether a client can be this user without a password.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.enabled && self.no_password
    }

    /// Whether no password is asked for.
    #[must_use]
    pub fn has_no_password(&self) -> bool {
        self.no_password
    }

    pub(crate) fn admits(&self, password: &[u8]) -> bool {
        if !self.enabled {
            return false;
        }
        let given = Hashed::of(password);
        // All are compared, so that the time does not tell which it was.
        let known = self.passwords.iter().fold(false, |found, known| found | known.is(&given));
        self.no_password || known
    }

    fn selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Whether one of the user's selectors admits the request; if none does, the reason that came nearest.
    ///
    /// # Errors
    /// The part of the request that is not allowed.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Denial> {
        let mut nearest = Denial::Database(None);
        for selector in self.selectors() {
            match selector.check(request) {
                Ok(()) => return Ok(()),
                Err(denial) => nearest = nearest.max(denial),
            }
        }
        Err(nearest)
    }

    /// Whether the user may still listen to this channel.
    #[must_use]
    pub fn may_hear(&self, channel: Channel<'_>) -> bool {
        self.selectors().any(|selector| selector.opens_channel(channel))
    }

    /// The flags, in words.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        if self.no_password {
            flags.push("nopass");
        }
        flags
    }

    pub(crate) fn passwords(&self) -> impl Iterator<Item = String> {
        self.passwords.iter().map(Hashed::to_hex)
    }

    pub(crate) fn first(&self) -> &Selector {
        &self.first
    }

    pub(crate) fn further(&self) -> &[Selector] {
        &self.more
    }

    /// The rules that make this user from a new one, as ACL LIST and files have them.
    #[must_use]
    pub fn describe(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = self.flags().into_iter().map(Vec::from).collect();
        parts.extend(self.passwords().map(|hash| format!("#{hash}").into_bytes()));
        parts.push(self.first.describe());
        parts.extend(self.more.iter().map(|selector| [b"(", selector.describe().as_slice(), b")"].concat()));
        parts.join(&b' ')
    }
}
