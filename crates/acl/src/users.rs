//! All users of a server or a sentinel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalogue::CommandCatalogue;
use crate::rule_error::RuleError;
use crate::selector::RuleContext;
use crate::user::User;

/// The user of clients that have not authenticated. It always exists.
pub const DEFAULT_USER_NAME: &[u8] = b"default";

/// Users by name. A user is replaced as a whole when its rules change.
#[derive(Debug)]
pub struct Users {
    catalogue: Arc<CommandCatalogue>,
    /// Whether new users may access all channels (`acl-pubsub-default`).
    all_channels_by_default: bool,
    by_name: BTreeMap<Vec<u8>, Arc<User>>,
}

/// The reason why the rules of a user were rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserRulesError {
    /// The user name contains a space or NUL.
    #[error("Usernames can't contain spaces or null characters")]
    InvalidName,
    /// The ACL file already defines this user.
    #[error("Duplicate user found. A user can only be defined once in config files")]
    DuplicateUser,
    /// A selector has no closing parenthesis.
    #[error("Unmatched parenthesis in acl selector starting at '{selector_start}'.")]
    UnclosedSelector {
        /// The first words of the unclosed selector.
        selector_start: String,
    },
    /// A rule is invalid.
    #[error("Error in ACL SETUSER modifier '{rule}': {reason}")]
    InvalidRule {
        /// The text of the invalid rule.
        rule: String,
        /// The reason why the rule is invalid.
        reason: RuleError,
    },
}

/// An error in a line of an ACL file, with the wording of Valkey 9.1 ([`AclFileError::error_text`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AclFileError {
    /// The line does not begin with `user` and a name.
    MissingUserName {
        /// Line number, starting at 1.
        line: usize,
    },
    /// An earlier line defines the same user.
    DuplicateUser {
        /// Line number, starting at 1.
        line: usize,
        /// The user that is defined twice.
        name: String,
    },
    /// The rules were rejected.
    InvalidRules {
        /// Line number, starting at 1.
        line: usize,
        /// The reason why the rules were rejected.
        error: UserRulesError,
    },
}

impl AclFileError {
    /// Formats the error for the log. `path` is the ACL file's path.
    #[must_use]
    pub fn error_text(&self, path: &str) -> String {
        match self {
            Self::MissingUserName { line } => {
                format!("{path}:{line} should start with user keyword followed by the username. ")
            }
            Self::DuplicateUser { line, name } => {
                format!("WARNING: Duplicate user '{name}' found on line {line}. ")
            }
            Self::InvalidRules { line, error: UserRulesError::InvalidRule { rule, reason } } => {
                format!("{path}:{line}: Error in applying operation '{rule}': {reason}. ")
            }
            Self::InvalidRules { line, error } => format!("{path}:{line}: {error}. "),
        }
    }
}

impl Users {
    /// Creates a list with only the user `default`, who has all permissions.
    #[must_use]
    pub fn new(catalogue: impl Into<Arc<CommandCatalogue>>) -> Self {
        Self::with_catalogue(catalogue.into(), false)
    }

    fn with_catalogue(catalogue: Arc<CommandCatalogue>, all_channels_by_default: bool) -> Self {
        let unrestricted =
            Arc::new(User::unrestricted(RuleContext { catalogue: &catalogue, all_channels_by_default }));
        Self {
            catalogue,
            all_channels_by_default,
            by_name: BTreeMap::from([(DEFAULT_USER_NAME.to_vec(), unrestricted)]),
        }
    }

    /// Returns a new list with the settings of this list and only the user `default`.
    #[must_use]
    pub fn with_default_user_only(&self) -> Self {
        Self::with_catalogue(self.catalogue.clone(), self.all_channels_by_default)
    }

    /// Sets whether new users may access all channels (`acl-pubsub-default`).
    pub fn set_all_channels_by_default(&mut self, is_enabled: bool) {
        self.all_channels_by_default = is_enabled;
    }

    /// The commands that the rules of these users can name.
    #[must_use]
    pub fn catalogue(&self) -> &CommandCatalogue {
        &self.catalogue
    }

    /// Finds a user by name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    /// The user `default`.
    ///
    /// # Panics
    /// Never, because the user `default` cannot be deleted.
    #[must_use]
    pub fn default_user(&self) -> &Arc<User> {
        &self.by_name[DEFAULT_USER_NAME]
    }

    /// All users ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &User)> + Clone {
        self.by_name.iter().map(|(name, user)| (name.as_slice(), &**user))
    }

    /// Whether the user exists, is enabled, and has this password.
    #[must_use]
    pub fn can_authenticate(&self, name: &[u8], password: &[u8]) -> bool {
        self.find(name).is_some_and(|user| user.can_authenticate(password))
    }

    /// Sets the password of the user `default`; an empty one removes it (`requirepass`).
    pub fn set_default_password(&mut self, password: &[u8]) {
        let user = self.by_name.get_mut(DEFAULT_USER_NAME).expect("there is always one");
        Arc::make_mut(user).replace_passwords(password);
    }

    /// Applies rules to a user, who is created if missing. Either all rules take effect or none.
    ///
    /// # Errors
    /// The first rejected rule; no user has changed.
    pub fn set_rules(&mut self, name: &[u8], rules: &[&[u8]]) -> Result<(), UserRulesError> {
        let new = || User::new(self.all_channels_by_default);
        let before = self.find(name).map_or_else(new, |user| User::clone(user));
        self.insert(name, before, rules)
    }

    /// Creates a user from the rules in a line of a file.
    ///
    /// # Errors
    /// The first rejected rule; no user has changed.
    pub fn load_user(&mut self, name: &[u8], rules: &[&[u8]]) -> Result<(), UserRulesError> {
        if name != DEFAULT_USER_NAME && self.find(name).is_some() {
            return Err(UserRulesError::DuplicateUser);
        }
        self.insert(name, User::new(self.all_channels_by_default), rules)
    }

    fn insert(&mut self, name: &[u8], mut user: User, rules: &[&[u8]]) -> Result<(), UserRulesError> {
        if name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Err(UserRulesError::InvalidName);
        }
        for rule in join_selectors(rules)? {
            let grammar = RuleContext {
                catalogue: &self.catalogue,
                all_channels_by_default: self.all_channels_by_default,
            };
            user.apply_rule(grammar, &rule).map_err(|reason| UserRulesError::InvalidRule {
                // Redis prints the rule as a C string, so cut it at the first NUL.
                rule: String::from_utf8_lossy(rule.split(|byte| *byte == 0).next().unwrap_or_default())
                    .into_owned(),
                reason,
            })?;
        }
        self.by_name.insert(name.to_vec(), Arc::new(user));
        Ok(())
    }

    /// Parses an ACL file: each line is `user`, a name and rules; empty lines and lines starting with `#` are
    /// ignored.
    ///
    /// # Errors
    /// All errors, by line number.
    pub fn parse_file(&self, text: &[u8]) -> Result<Self, Vec<AclFileError>> {
        let mut users = self.with_default_user_only();
        let mut faults = Vec::new();
        let mut seen = BTreeSet::new();
        for (line, text) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let words: Vec<&[u8]> =
                text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
            let fault = match words.as_slice() {
                [] => continue,
                [first, ..] if first.starts_with(b"#") => continue,
                [b"user", name, ..] if !seen.insert(*name) => Some(AclFileError::DuplicateUser {
                    line,
                    name: String::from_utf8_lossy(name).into_owned(),
                }),
                [b"user", name, rules @ ..] => {
                    users.load_user(name, rules).err().map(|error| AclFileError::InvalidRules { line, error })
                }
                _ => Some(AclFileError::MissingUserName { line }),
            };
            faults.extend(fault);
        }
        if faults.is_empty() { Ok(users) } else { Err(faults) }
    }

    /// Formats all users as an ACL file.
    #[must_use]
    pub fn format_file(&self) -> Vec<u8> {
        let line =
            |(name, user): (&[u8], &User)| [b"user ", name, b" ", &user.format_rules(), b"\n"].concat();
        self.iter().flat_map(line).collect()
    }

    /// The users as lines of a configuration file, each given as the words after `user`. The user `default` is omitted
    /// if `required_password` (`requirepass`) describes it completely and `includes_default_user` is false.
    #[must_use]
    pub fn to_config_lines(
        &self,
        required_password: &[u8],
        includes_default_user: bool,
    ) -> Vec<Vec<Vec<u8>>> {
        let mut plain = self.with_default_user_only();
        plain.set_default_password(required_password);
        let is_plain =
            |name: &[u8], user: &User| name == DEFAULT_USER_NAME && *user == **plain.default_user();
        let words = |(name, user): (&[u8], &User)| {
            let rules = user.format_rules();
            std::iter::once(name).chain(rules.split(|byte| *byte == b' ')).map(<[u8]>::to_vec).collect()
        };
        self.iter().filter(|(name, user)| includes_default_user || !is_plain(name, user)).map(words).collect()
    }

    /// Loads users from lines of a configuration file.
    ///
    /// # Errors
    /// The index of the first rejected line, and the reason.
    pub fn load_config_lines(&mut self, lines: &[Vec<Vec<u8>>]) -> Result<(), (usize, String)> {
        for (place, line) in lines.iter().enumerate() {
            let Some((name, rules)) = line.split_first() else { continue };
            let rules: Vec<&[u8]> = rules.iter().map(Vec::as_slice).collect();
            self.load_user(name, &rules).map_err(|error| {
                let name = String::from_utf8_lossy(name);
                (place, format!("Error in user declaration '{name}': {error}"))
            })?;
        }
        Ok(())
    }

    /// Deletes a user. Returns whether the user existed.
    ///
    /// # Panics
    /// If `name` is the user `default`.
    pub(crate) fn delete(&mut self, name: &[u8]) -> bool {
        assert!(name != DEFAULT_USER_NAME, "there is always one");
        self.by_name.remove(name).is_some()
    }
}

/// Joins the words of each selector, which may contain blanks between its parentheses.
fn join_selectors(rules: &[&[u8]]) -> Result<Vec<Vec<u8>>, UserRulesError> {
    let mut merged: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<Vec<u8>> = None;
    for rule in rules {
        let whole = match open.take() {
            Some(begun) => [&begun, &b" "[..], rule].concat(),
            None => rule.to_vec(),
        };
        if whole.starts_with(b"(") && !whole.ends_with(b")") {
            open = Some(whole);
        } else {
            merged.push(whole);
        }
    }
    match open {
        None => Ok(merged),
        Some(begun) => {
            let start = begun.split(|byte| *byte == b' ').next().unwrap_or_default();
            Err(UserRulesError::UnclosedSelector {
                selector_start: String::from_utf8_lossy(start).into_owned(),
            })
        }
    }
}
