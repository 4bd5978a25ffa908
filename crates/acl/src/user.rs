//! A user: flags, passwords, a root selector, and further selectors that can permit more.

use crate::password::PasswordHash;
use crate::rule_error::RuleError;
use crate::selector::{AccessedChannel, AclRequest, AclSelector, Denial, RuleContext};

/// A user with passwords and permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    is_enabled: bool,
    /// Whether the user can log in with any password (`nopass`).
    needs_no_password: bool,
    passwords: Vec<PasswordHash>,
    root_selector: AclSelector,
    further_selectors: Vec<AclSelector>,
}

impl User {
    /// A user who cannot log in and has no permissions except the channels that `all_channels_by_default` grants.
    pub(crate) fn new(all_channels_by_default: bool) -> Self {
        Self {
            is_enabled: false,
            needs_no_password: false,
            passwords: Vec::new(),
            root_selector: AclSelector::new(all_channels_by_default),
            further_selectors: Vec::new(),
        }
    }

    /// The user `default` of a new server: no password, all permissions.
    pub(crate) fn unrestricted(context: RuleContext<'_>) -> Self {
        let mut user = Self::new(true);
        for rule in [&b"on"[..], b"nopass", b"~*", b"+@all"] {
            user.apply_rule(context, rule).expect("these are rules");
        }
        user
    }

    /// Applies one rule. A rejected rule may leave the user partly changed, so callers must work on a copy.
    ///
    /// # Errors
    /// Why the rule was rejected.
    pub(crate) fn apply_rule(&mut self, context: RuleContext<'_>, rule: &[u8]) -> Result<(), RuleError> {
        match rule.to_ascii_lowercase().as_slice() {
            b"" => {}
            b"on" => self.is_enabled = true,
            b"off" => self.is_enabled = false,
            b"nopass" => {
                self.needs_no_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.needs_no_password = false;
                self.passwords.clear();
            }
            // Redis 7's rules for RESTORE have no effect: payloads are always validated.
            b"sanitize-payload" | b"skip-sanitize-payload" => {}
            b"clearselectors" => self.further_selectors.clear(),
            b"reset" => *self = Self::new(context.all_channels_by_default),
            _ => return self.apply_prefixed_rule(context, rule),
        }
        Ok(())
    }

    /// Applies a rule that starts with a prefix character, such as `>` for a password or `~` for a key pattern.
    fn apply_prefixed_rule(&mut self, context: RuleContext<'_>, rule: &[u8]) -> Result<(), RuleError> {
        let from_hex = |text| PasswordHash::from_hex(text).ok_or(RuleError::InvalidPasswordHash);
        match (rule[0], &rule[1..]) {
            (b'>', password) => self.add_password(PasswordHash::from_password(password)),
            (b'#', hash) => self.add_password(from_hex(hash)?),
            (b'<', password) => return self.remove_password(&PasswordHash::from_password(password)),
            (b'!', hash) => return self.remove_password(&from_hex(hash)?),
            (b'(', rules) if rule.ends_with(b")") => {
                let mut selector = AclSelector::new(context.all_channels_by_default);
                let words = rules[..rules.len() - 1].split(u8::is_ascii_whitespace);
                for word in words.filter(|word| !word.is_empty()) {
                    selector.apply_rule(context, word).unwrap_or(Err(RuleError::Syntax))?;
                }
                self.further_selectors.push(selector);
            }
            _ => return self.root_selector.apply_rule(context, rule).unwrap_or(Err(RuleError::Syntax)),
        }
        Ok(())
    }

    fn add_password(&mut self, password: PasswordHash) {
        self.needs_no_password = false;
        if !self.passwords.contains(&password) {
            self.passwords.push(password);
        }
    }

    fn remove_password(&mut self, password: &PasswordHash) -> Result<(), RuleError> {
        let place = self.passwords.iter().position(|known| known == password);
        self.passwords.remove(place.ok_or(RuleError::NoSuchPassword)?);
        Ok(())
    }

    /// Replaces all passwords by this one, or by none if it is empty (`requirepass`).
    pub fn replace_passwords(&mut self, password: &[u8]) {
        self.needs_no_password = password.is_empty();
        self.passwords.clear();
        if !password.is_empty() {
            self.add_password(PasswordHash::from_password(password));
        }
    }

    /// Whether the user has every permission, so that requests need not be checked.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.selectors().any(AclSelector::permits_everything)
    }

    /// Whether the user may read every key with this request.
    #[must_use]
    pub fn may_read_all_keys(&self, request: &AclRequest<'_>) -> bool {
        self.selectors()
            .any(|selector| selector.permits_reading_all_keys() && selector.check(request).is_ok())
    }

    /// Whether the user can log in.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Whether clients are this user without authentication: the user is enabled and needs no password.
    #[must_use]
    pub fn can_skip_authentication(&self) -> bool {
        self.is_enabled && self.needs_no_password
    }

    /// Whether the user needs no password.
    #[must_use]
    pub fn has_no_password(&self) -> bool {
        self.needs_no_password
    }

    pub(crate) fn can_authenticate(&self, password: &[u8]) -> bool {
        if !self.is_enabled {
            return false;
        }
        let given = PasswordHash::from_password(password);
        // Compare all hashes, so that timing does not reveal which one matched.
        let known = self.passwords.iter().fold(false, |found, known| found | known.equals(&given));
        self.needs_no_password || known
    }

    fn selectors(&self) -> impl Iterator<Item = &AclSelector> {
        std::iter::once(&self.root_selector).chain(&self.further_selectors)
    }

    /// Checks the request against all selectors.
    ///
    /// # Errors
    /// The denial of the selector that came closest to permitting the request.
    pub fn check_request(&self, request: &AclRequest<'_>) -> Result<(), Denial> {
        let mut nearest = Denial::Database(None);
        for selector in self.selectors() {
            match selector.check(request) {
                Ok(()) => return Ok(()),
                Err(denial) => nearest = nearest.max(denial),
            }
        }
        Err(nearest)
    }

    /// Whether the user may subscribe to this channel.
    #[must_use]
    pub fn may_subscribe(&self, channel: AccessedChannel<'_>) -> bool {
        self.selectors().any(|selector| selector.permits_channel(channel))
    }

    /// The flags as ACL rules: `on` or `off`, and `nopass`.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_enabled { "on" } else { "off" }];
        if self.needs_no_password {
            flags.push("nopass");
        }
        flags
    }

    pub(crate) fn passwords(&self) -> impl Iterator<Item = String> {
        self.passwords.iter().map(PasswordHash::to_hex)
    }

    pub(crate) fn root_selector(&self) -> &AclSelector {
        &self.root_selector
    }

    pub(crate) fn further_selectors(&self) -> &[AclSelector] {
        &self.further_selectors
    }

    /// The rules that recreate this user from an empty one, as in ACL LIST and files.
    #[must_use]
    pub fn format_rules(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = self.flags().into_iter().map(Vec::from).collect();
        parts.extend(self.passwords().map(|hash| format!("#{hash}").into_bytes()));
        parts.push(self.root_selector.format_rules());
        parts.extend(
            self.further_selectors
                .iter()
                .map(|selector| [b"(", selector.format_rules().as_slice(), b")"].concat()),
        );
        parts.join(&b' ')
    }
}
