//! Access control (ACL): whether a client may run a command.
//!
//! A session caches its user's rules and a flag for unrestricted users, so unrestricted clients pay nothing.
//! Authentication, and the effects of changed users on sessions, are in `engine/access_control.rs`.
//!
//! Each caller that runs commands for a client calls [`Engine::check_permissions`]: the dispatcher for each request and
//! again for each command of EXEC, a script for each call. Denials are logged ([`Engine::record_denial`]) where Redis
//! logs them, but not for mere queries (ACL DRYRUN, `redis.acl_check_cmd`).

use std::borrow::Cow;
use std::sync::Arc;

use acl::{
    AccessedChannel, AccessedDatabases, AccessedKey, AclClient, AclRequest, CommandId, CommandResolver,
    Denial, DenialReason, KeyAccess, ResolveError, User, UserChange,
};
use clock::Millis;
use resp::Args;

use crate::clients::Client;
use crate::command::{
    Categories, ChannelArguments, Context, DatabaseAccess, Flags, RegisteredCommand, Registry,
};
use crate::engine::{DenialRecord, Engine};
use crate::error::{CommandError, quote};
use crate::keys::KeyFlags;
use crate::session::Session;

/// Why an access was denied, in the form that ACL LOG records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDenied {
    /// The kind of permission that the user lacks.
    pub denial: Denial,
    /// The name of the command, key, channel or database to which access was denied.
    pub object: Vec<u8>,
    /// The name of the ACL user that was denied.
    pub user: Vec<u8>,
}

impl AccessDenied {
    /// Names the missing permission in the words of Redis's error texts.
    fn describe(&self) -> Cow<'static, str> {
        match self.denial {
            Denial::Command => {
                let (user, name) = (quote(&self.user, usize::MAX), String::from_utf8_lossy(&self.object));
                format!("User {user} has no permissions to run the '{name}' command").into()
            }
            Denial::Key(_) => "No permissions to access a key".into(),
            Denial::Channel(_) => "No permissions to access a channel".into(),
            Denial::Database(_) => "No permissions to access database".into(),
        }
    }

    /// Returns the error for the client.
    #[must_use]
    pub fn error(&self) -> CommandError {
        CommandError::Text(format!("NOPERM {}", self.describe()).into())
    }

    pub(crate) fn error_in_script(&self) -> CommandError {
        CommandError::Text(format!("ERR ACL failure in script: {}", self.describe()).into())
    }

    /// Returns the error for a queued command whose permission was revoked before EXEC.
    pub(crate) fn error_in_exec(&self) -> CommandError {
        let reason = match self.denial {
            Denial::Command => "no permission to execute the command or subcommand",
            Denial::Key(_) => "no permission to touch the specified keys",
            Denial::Channel(_) => "no permission to access one of the channels used as arguments",
            Denial::Database(_) => "no permission",
        };
        let text = format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This \
             command is no longer allowed for the following reason: {reason}"
        );
        CommandError::Text(text.into())
    }

    fn reason(&self) -> DenialReason {
        match self.denial {
            Denial::Command => DenialReason::Command,
            Denial::Key(_) => DenialReason::Key,
            Denial::Channel(_) => DenialReason::Channel,
            Denial::Database(_) => DenialReason::Database,
        }
    }
}

/// The database in which a request runs, and how many databases the server has.
#[derive(Clone, Copy)]
struct RequestDatabase {
    db: u16,
    database_count: u16,
}

/// Collects the command, keys, channels and databases of a request.
fn acl_request<'a>(entry: &RegisteredCommand, args: Args<'a>, database: RequestDatabase) -> AclRequest<'a> {
    let command = entry.command;
    let (range, is_pattern) = match command.channels {
        ChannelArguments::None => (0..0, false),
        ChannelArguments::First => (1..2, false),
        ChannelArguments::All => (1..args.len(), false),
        ChannelArguments::Patterns => (1..args.len(), true),
    };
    let words = 1 + usize::from(entry.full_name.contains('|'));
    let mut request = AclRequest {
        // Clients may call AUTH and HELLO whatever their permissions are.
        command: (!command.flags.contains(Flags::NO_AUTH)).then_some(CommandId(entry.index)),
        first_argument: args.get(words),
        channels: range
            .filter_map(|index| args.get(index))
            .map(|name| AccessedChannel { name, is_pattern })
            .collect(),
        databases: accessed_databases(entry, args, database),
        ..AclRequest::default()
    };
    command.visit_keys(args, &mut |index, flags| {
        let changes = KeyFlags::INSERT | KeyFlags::DELETE | KeyFlags::UPDATE;
        let need = KeyAccess { reads: flags.contains(KeyFlags::ACCESS), writes: flags.intersects(changes) };
        if let Some(name) = args.get(index).filter(|_| !flags.contains(KeyFlags::NOT_KEY)) {
            request.keys.push(AccessedKey { name, access: need });
        }
    });
    request
}

fn accessed_databases(
    entry: &RegisteredCommand,
    args: Args<'_>,
    database: RequestDatabase,
) -> AccessedDatabases {
    let command = entry.command;
    if command.flags.contains(Flags::ALL_DBS) {
        return AccessedDatabases::All;
    }
    let has_keys = command.keys.iter().any(|spec| !spec.flags.contains(KeyFlags::NOT_KEY));
    let in_session = has_keys
        || command.flags.intersects(Flags::WRITE | Flags::READONLY)
        || command.categories().contains(Categories::KEYSPACE);
    let counts = match command.databases {
        DatabaseAccess::Current | DatabaseAccess::CurrentAndAt(_) => in_session,
        DatabaseAccess::OnlyAt(_) | DatabaseAccess::SelectedByArgument => false,
    };
    let named = command.named_databases(args, database.database_count);
    if command.databases == DatabaseAccess::Current && !in_session && named.is_empty() {
        return AccessedDatabases::Nothing;
    }
    let own = counts.then_some(database.db);
    AccessedDatabases::Some(own.into_iter().chain(named).map(u32::from).collect())
}

/// Resolves the request named in ACL DRYRUN against the commands of this server or sentinel.
struct CommandSetResolver<'a> {
    registry: &'a Registry,
    database: RequestDatabase,
}

impl CommandResolver for CommandSetResolver<'_> {
    fn resolve<'a>(&self, request: Args<'a>) -> Result<AclRequest<'a>, ResolveError> {
        let entry = self.registry.resolve(request).map_err(|_| ResolveError::NoSuchCommand)?;
        if !entry.command.accepts_word_count(request.len()) {
            return Err(ResolveError::WrongArity(entry.full_name.clone()));
        }
        Ok(acl_request(entry, request, self.database))
    }
}

impl Engine {
    /// Checks whether the session's user may run this command. The arity was checked before.
    ///
    /// # Errors
    /// The first missing permission with its object.
    #[inline]
    pub fn check_permissions(
        &self,
        session: &Session,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) -> Result<(), AccessDenied> {
        if session.is_unrestricted() { Ok(()) } else { self.check_user_rules(session, entry, args) }
    }

    fn database_of_next_request(&self, session: &Session) -> RequestDatabase {
        RequestDatabase { db: session.next_command_db(), database_count: self.keyspace.database_count() }
    }

    #[cold]
    fn check_user_rules(
        &self,
        session: &Session,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) -> Result<(), AccessDenied> {
        if session.origin().is_stream() {
            return Ok(());
        }
        let found = || self.access.users.read().find(&session.client().user.lock()).cloned();
        let request = acl_request(entry, args, self.database_of_next_request(session));
        let checked = match session.user().cloned().or_else(found) {
            Some(user) => user.check_request(&request),
            None => Err(Denial::Command),
        };
        checked.map_err(|denial| {
            let object = match denial {
                Denial::Command => entry.full_name.clone().into_bytes(),
                Denial::Key(place) => request.keys[place].name.to_vec(),
                Denial::Channel(place) => request.channels[place].name.to_vec(),
                Denial::Database(Some(number)) => number.to_string().into_bytes(),
                Denial::Database(None) => entry.full_name.clone().into_bytes(),
            };
            AccessDenied { denial, object, user: session.client().user.lock().clone() }
        })
    }

    /// Records a denial in ACL LOG; `context` is `toplevel`, `multi` or `lua`.
    pub fn record_denial(
        &self,
        session: &Session,
        now: Millis,
        context: &'static str,
        denied: &AccessDenied,
    ) {
        let username = session.client().user.lock().clone();
        let (reason, object) = (denied.reason(), denied.object.clone());
        self.access.record_denied_access(session, now, DenialRecord { reason, context, object, username });
    }

    /// Checks a client's own request like [`Engine::check_permissions`], and logs a denial.
    ///
    /// # Errors
    /// The NOPERM error for the client.
    pub fn check_access(
        &self,
        session: &Session,
        entry: &RegisteredCommand,
        args: Args<'_>,
        now: Millis,
    ) -> Result<(), CommandError> {
        self.check_permissions(session, entry, args).map_err(|denied| {
            let context = if session.in_transaction() { "multi" } else { "toplevel" };
            session.publish(now, entry.index);
            self.record_denial(session, now, context, &denied);
            denied.error()
        })
    }
}

impl Context<'_> {
    /// Returns whether the client may read all keys with this command (SORT with BY or GET patterns).
    #[must_use]
    pub fn may_read_all_keys(&self) -> bool {
        let session = &*self.session;
        let within = self.engine.database_of_next_request(session);
        let request = || acl_request(self.commands.command_by_number(self.command_index), self.args, within);
        let may = |user: &Arc<User>| user.may_read_all_keys(&request());
        session.is_unrestricted() || session.user().is_none_or(may)
    }

    /// Runs the subcommands of ACL that only need the users and the log. Returns the clients whose permissions changed;
    /// the caller waits for them with [`Engine::await_revoked_clients`].
    ///
    /// # Errors
    /// The error for the client, such as a syntax error or an unknown user.
    pub fn run_acl_subcommand(&mut self) -> Result<Vec<Arc<Client>>, CommandError> {
        let Self { engine, session, args, reply, now, .. } = self;
        let user = session.client().user.lock().clone();
        let asker = AclClient { user: &user, now: *now };
        let requests = CommandSetResolver {
            registry: self.commands.registry(),
            database: engine.database_of_next_request(session),
        };
        let effect = {
            let (mut users, mut log) = (engine.access.users.write(), engine.access.acl_log.lock());
            let effect = acl::execute_acl(&mut users, &mut log, asker, &requests, *args, reply)
                .map_err(|text| CommandError::Text(text.into()))?;
            if effect != UserChange::Unchanged {
                engine.access.increment_version();
            }
            effect
        };
        let others = if effect == UserChange::Unchanged {
            Vec::new()
        } else {
            engine.close_unauthorized_clients(Some(session))
        };
        if session.users_version() != engine.access.users_version() && !engine.access.refresh_user(session) {
            session.close_after_reply();
        }
        Ok(others)
    }
}
