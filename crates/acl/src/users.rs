//! All users of a server or a sentinel.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::user::{RuleError, User};

/// The user that everybody is who has not said otherwise. There is always one.
pub const DEFAULT: &[u8] = b"default";

/// Users by name. A user is replaced as a whole when its rules change.
#[derive(Debug)]
pub struct Users {
    catalogue: Catalogue,
    by_name: BTreeMap<Vec<u8>, Arc<User>>,
}

/// Why a user's rules were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The name has a space or a null character.
    #[error("Usernames can't contain spaces or null characters")]
    Name,
    /// The user stands in the file already.
    #[error("Duplicate user found. A user can only be defined once in config files")]
    Duplicate,
    /// A selector has no closing parenthesis.
    #[error("Unmatched parenthesis in acl selector starting at '{start}'.")]
    Unmatched {
        /// The selector's first words.
        start: String,
    },
    /// A rule was refused.
    #[error("Error in ACL SETUSER modifier '{rule}': {reason}")]
    Rule {
        /// The rule.
        rule: String,
        /// What is wrong with it.
        reason: RuleError,
    },
}

impl Users {
    /// Only the user `default`, who may do everything.
    #[must_use]
    pub fn new(catalogue: Catalogue) -> Self {
        let everybody = Arc::new(User::everybody(&catalogue));
        Self { catalogue, by_name: BTreeMap::from([(DEFAULT.to_vec(), everybody)]) }
    }

    /// The commands that rules may name.
    #[must_use]
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The user of this name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    /// The user `default`.
    ///
    /// # Panics
    /// Never: it cannot be deleted.
    #[must_use]
    pub fn default_user(&self) -> &Arc<User> {
        &self.by_name[DEFAULT]
    }

    /// All users in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &User)> + Clone {
        self.by_name.iter().map(|(name, user)| (name.as_slice(), &**user))
    }

    /// Whether the user exists, is enabled, and has that password.
    #[must_use]
    pub fn admits(&self, name: &[u8], password: &[u8]) -> bool {
        self.find(name).is_some_and(|user| user.admits(password))
    }

    /// Sets the password of the user `default`, or takes it away if it is empty: `requirepass`.
    pub fn set_default_password(&mut self, password: &[u8]) {
        let user = self.by_name.get_mut(DEFAULT).expect("there is always one");
        Arc::make_mut(user).set_only_password(password);
    }

    /// Applies rules to a user, who is made if there is none of that name: all of them or none.
    ///
    /// # Errors
    /// The first rule that is refused; nobody has changed then.
    pub fn set(&mut self, name: &[u8], rules: &[&[u8]]) -> Result<(), LineError> {
        let before = self.find(name).map(|user| User::clone(user)).unwrap_or_default();
        self.put(name, before, rules)
    }

    /// The same for a user who begins anew, as a line of a file describes one.
    ///
    /// # Errors
    /// The first rule that is refused; nobody has changed then.
    pub fn load(&mut self, name: &[u8], rules: &[&[u8]]) -> Result<(), LineError> {
        if name != DEFAULT && self.find(name).is_some() {
            return Err(LineError::Duplicate);
        }
        self.put(name, User::default(), rules)
    }

    fn put(&mut self, name: &[u8], mut user: User, rules: &[&[u8]]) -> Result<(), LineError> {
        if name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Err(LineError::Name);
        }
        for rule in merge_selectors(rules)? {
            user.apply(&self.catalogue, &rule).map_err(|reason| LineError::Rule {
                rule: String::from_utf8_lossy(&rule).into_owned(),
                reason,
            })?;
        }
        self.by_name.insert(name.to_vec(), Arc::new(user));
        Ok(())
    }

    /// Deletes a user; says whether there was one.
    ///
    /// # Panics
    /// If it is the user `default`.
    pub(crate) fn delete(&mut self, name: &[u8]) -> bool {
        assert!(name != DEFAULT, "there is always one");
        self.by_name.remove(name).is_some()
    }
}

/// Puts the words of each selector together: between parentheses there may be blanks.
fn merge_selectors(rules: &[&[u8]]) -> Result<Vec<Vec<u8>>, LineError> {
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
            Err(LineError::Unmatched { start: String::from_utf8_lossy(start).into_owned() })
        }
    }
}
