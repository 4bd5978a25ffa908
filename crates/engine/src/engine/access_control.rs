//! Authentication of sessions, and the effects of ACL changes on connected clients.
//!
//! A session caches its user's rules ([`crate::session`]). Every change of users increments
//! [`AccessControl::users_version`]; a session that sees a new version at the start of a batch reloads its rules, or
//! closes if its user was deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use acl::{AccessedChannel, AclDenial, AclLog, CommandCatalogue, DenialReason, User, Users};
use clock::Millis;
use parking_lot::{Mutex, RwLock};

use super::Engine;
use super::revocation::Revocations;
use crate::clients::{ChannelKind, Client};
use crate::error::CommandError;
use crate::session::Session;

/// The error reply to a failed login.
const WRONG_PASS_ERROR: CommandError =
    CommandError::text("WRONGPASS invalid username-password pair or user is disabled.");

/// A denial for ACL LOG, without the client that it was given to.
#[derive(Debug)]
pub(crate) struct DenialRecord {
    pub(crate) reason: DenialReason,
    /// Where the command came from: `toplevel`, `multi` or `lua`.
    pub(crate) context: &'static str,
    /// What the user may not access: a command, a key, a channel, or what a login was attempted with.
    pub(crate) object: Vec<u8>,
    pub(crate) username: Vec<u8>,
}

/// The ACL users, and what sessions need to follow changes of users.
#[derive(Debug)]
pub struct AccessControl {
    /// Numbers and names of the commands, for access control and statistics.
    pub catalogue: Arc<CommandCatalogue>,
    /// The ACL users with their passwords and permissions.
    pub users: RwLock<Users>,
    /// Recent denials (ACL LOG).
    pub acl_log: Mutex<AclLog>,
    /// Incremented on every change of users, so that sessions reload their cached rules.
    version: AtomicU64,
    pub(super) revocations: Revocations,
}

impl AccessControl {
    pub(super) fn new(catalogue: Arc<CommandCatalogue>) -> Self {
        Self {
            users: RwLock::new(Users::new(catalogue.clone())),
            catalogue,
            acl_log: Mutex::default(),
            // A session starts with version 0, so it loads its user's rules before its first command.
            version: AtomicU64::new(1),
            revocations: Revocations::default(),
        }
    }

    /// Makes all sessions reload their rules. The caller has locked the users for the change.
    pub(crate) fn increment_version(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Starts at the version of another engine, for a session that is valid at that version.
    pub(super) fn set_users_version(&self, version: u64) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// Records a denial to the session's client in ACL LOG.
    pub(crate) fn record_denied_access(&self, session: &Session, now: Millis, denial: DenialRecord) {
        let client =
            String::from_utf8_lossy(&session.client().format_line(now, &self.catalogue)).into_owned();
        let DenialRecord { reason, context, object, username } = denial;
        self.acl_log.lock().record(now, AclDenial { reason, context, object, username, client });
    }

    /// Authenticates the session's client; `object` is recorded in ACL LOG if the login fails.
    ///
    /// # Errors
    /// The user does not exist or is disabled, or the password is wrong.
    pub fn log_in(
        &self,
        session: &mut Session,
        now: Millis,
        object: &[u8],
        name: &[u8],
        password: &[u8],
    ) -> Result<(), CommandError> {
        let user = {
            let users = self.users.read();
            users.find(name).filter(|_| users.can_authenticate(name, password)).cloned()
        };
        let Some(user) = user else {
            let denial = DenialRecord {
                reason: DenialReason::Auth,
                context: "toplevel",
                object: object.to_vec(),
                username: name.to_vec(),
            };
            self.record_denied_access(session, now, denial);
            return Err(WRONG_PASS_ERROR);
        };
        session.set_user(name, user);
        Ok(())
    }

    /// Authenticates a client by the names in its certificate: the first name that belongs to an enabled user is used.
    /// If no name does, the last one is recorded in ACL LOG.
    pub fn log_in_by_certificate(&self, session: &mut Session, now: Millis, names: &[String]) {
        let user = {
            let users = self.users.read();
            let find = |name: &String| users.find(name.as_bytes()).filter(|user| user.is_enabled()).cloned();
            names.iter().find_map(|name| Some((name, find(name)?)))
        };
        match (user, names.last()) {
            (Some((name, user)), _) => session.set_user(name.as_bytes(), user),
            (None, Some(name)) => {
                let denial = DenialRecord {
                    reason: DenialReason::Certificate,
                    context: "toplevel",
                    object: b"tls-cert".to_vec(),
                    username: name.as_bytes().to_vec(),
                };
                self.record_denied_access(session, now, denial);
            }
            (None, None) => {}
        }
    }

    /// Logs the client in as the default user, as after connecting.
    pub(crate) fn log_out(&self, session: &mut Session) {
        let user = self.users.read().default_user().clone();
        session.become_default_user(user);
    }

    /// Returns whether the default user needs no password, so that new clients are authenticated when they connect.
    #[must_use]
    pub fn is_default_user_open(&self) -> bool {
        self.users.read().default_user().can_skip_authentication()
    }

    /// Reloads the rules of the session's user. Returns `false` if the user was deleted and the client must be closed.
    #[cold]
    pub fn refresh_user(&self, session: &mut Session) -> bool {
        if session.origin().is_stream() {
            session.permit_all(self.users_version());
            return true;
        }
        let users = self.users.read();
        let version = self.users_version();
        let user = users.find(&session.client().user.lock()).cloned();
        session.replace_rules(user, users.default_user().can_skip_authentication(), version);
        session.user().is_some()
    }

    /// Returns the version of the user list, which changes with every ACL change.
    #[inline]
    #[must_use]
    pub fn users_version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Changes users and makes all sessions reload their rules.
    pub fn change_users<T>(&self, change: impl FnOnce(&mut Users) -> T) -> T {
        let mut users = self.users.write();
        let changed = change(&mut users);
        self.increment_version();
        changed
    }
}

impl Engine {
    /// Closes the connections of deleted users and of subscribers that lost access to their channels. The client of
    /// `own_session` is closed only after its reply. Returns the other clients, which may still be running commands
    /// ([`Engine::await_revoked_clients`]).
    #[must_use]
    pub fn close_unauthorized_clients(&self, own_session: Option<&mut Session>) -> Vec<Arc<Client>> {
        let users = self.access.users.read();
        let is_to_go = |client: &Client| match users.find(&client.user.lock()) {
            None => true,
            Some(user) => has_forbidden_subscription(client, user),
        };
        let own_id = own_session.as_ref().map(|session| session.id());
        let mut others = self.clients.list();
        others.retain(|client| Some(client.id) != own_id);
        others.iter().filter(|client| is_to_go(client)).for_each(|client| client.kill());
        if let Some(session) = own_session
            && is_to_go(session.client())
        {
            session.close_after_reply();
        }
        others
    }
}

/// Returns whether a client is subscribed to a channel that its user may no longer access.
fn has_forbidden_subscription(client: &Client, user: &User) -> bool {
    ChannelKind::ALL.into_iter().any(|kind| {
        let is_pattern = kind == ChannelKind::Pattern;
        client
            .subscriptions(kind)
            .iter()
            .any(|name| !user.may_subscribe(AccessedChannel { name, is_pattern }))
    })
}
