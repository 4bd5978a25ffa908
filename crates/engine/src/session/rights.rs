//! What a session's user may do, cached until the ACL users change.

use std::sync::Arc;

use acl::User;

use super::Session;

/// Authentication state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoginState {
    /// The client has not authenticated: only commands such as AUTH may run.
    Unauthenticated,
    /// The client is authenticated as a user whose permissions are checked for each command.
    Restricted,
    /// The client is authenticated as a user with all permissions.
    Unrestricted,
}

/// The rights of the session's user. Only an authenticated client can be unrestricted.
#[derive(Debug, Clone)]
pub(crate) struct Rights {
    login: LoginState,
    /// The user with its rules; unset until the first command.
    user: Option<Arc<User>>,
    /// Version of the users from which the rules were loaded ([`crate::AccessControl::users_version`]).
    users_version: u64,
}

impl Rights {
    /// Creates the rights of a client before its first command.
    pub(super) fn new(authenticated: bool) -> Self {
        let login = if authenticated { LoginState::Restricted } else { LoginState::Unauthenticated };
        Self { login, user: None, users_version: 0 }
    }

    #[inline(always)]
    pub(super) fn is_unrestricted(&self) -> bool {
        self.login == LoginState::Unrestricted
    }
}

impl Session {
    /// Returns whether the client is authenticated, or authentication is disabled.
    #[must_use]
    #[inline]
    pub fn is_authenticated(&self) -> bool {
        self.rights.login != LoginState::Unauthenticated
    }

    /// Returns whether the user has all permissions.
    #[inline]
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.rights.is_unrestricted()
    }

    /// Returns the user with its rules; unset until the first command.
    pub(crate) fn user(&self) -> Option<&Arc<User>> {
        self.rights.user.as_ref()
    }

    /// Returns the version of the users that the cached rules belong to ([`crate::AccessControl::users_version`]).
    #[inline]
    pub(crate) fn users_version(&self) -> u64 {
        self.rights.users_version
    }

    /// Logs the client in as this user.
    pub(crate) fn set_user(&mut self, name: &[u8], user: Arc<User>) {
        *self.client().user.lock() = name.to_vec();
        self.rights.login =
            if user.is_unrestricted() { LoginState::Unrestricted } else { LoginState::Restricted };
        self.rights.user = Some(user);
    }

    /// Logs the client in as the default user, or out if that user needs a password.
    pub(crate) fn become_default_user(&mut self, user: Arc<User>) {
        let is_open = user.can_skip_authentication();
        self.set_user(acl::DEFAULT_USER_NAME, user);
        if !is_open {
            self.rights.login = LoginState::Unauthenticated;
        }
    }

    /// Gives a stream from another node all permissions, and marks them as loaded at this version of the users.
    pub(crate) fn permit_all(&mut self, users_version: u64) {
        self.rights.login = LoginState::Unrestricted;
        self.rights.users_version = users_version;
    }

    /// Replaces the user's rules; `None` means that the user was deleted. `auth_disabled` says whether new clients need
    /// not authenticate.
    pub(crate) fn replace_rules(&mut self, user: Option<Arc<User>>, auth_disabled: bool, users_version: u64) {
        self.rights.login = match &user {
            _ if !self.is_authenticated() && !auth_disabled => LoginState::Unauthenticated,
            Some(user) if user.is_unrestricted() => LoginState::Unrestricted,
            Some(_) | None => LoginState::Restricted,
        };
        self.rights.user = user;
        self.rights.users_version = users_version;
    }
}
