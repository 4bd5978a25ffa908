//! Access control: the user that a client is logged in as, and whether it may do what it asks for.
//!
//! A session keeps its user's rules, and one flag that says whether there is anything to look at
//! ([`Session::is_unrestricted`]): a client that may do everything pays nothing. Users change rarely, so each change
//! counts [`Engine::users_version`] up, and a session that finds another number at the beginning of a batch takes
//! the rules anew, or ends if its user is gone.
//!
//! Each caller that runs commands for a client asks [`Engine::permits`]: the dispatcher for each request and again for
//! each command of EXEC, a script for each call. A refusal is noted ([`Engine::note_denial`]) where Redis notes it, and
//! not where a client only asks whether it would be refused (ACL DRYRUN, `redis.acl_check_cmd`).

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use acl::{
    Asker, Channel, CommandId, Denial, Effect, Host, Incident, Key, Need, Reason, Request, Touched,
    Unresolved, User, Users,
};
use clock::Millis;
use resp::{Args, Writer};

use crate::clients::Client;
use crate::command::{Categories, Channels, Databases, Flags};
use crate::engine::Engine;
use crate::error::{CommandError, quoted};
use crate::keys::KeyFlags;
use crate::lookup::{Registered, Registry};
use crate::pubsub::ChannelKind;
use crate::session::{Origin, Session};

/// The error of a failed login.
pub(crate) const WRONG_PASS: CommandError =
    CommandError::text("WRONGPASS invalid username-password pair or user is disabled.");

/// That a user may not do this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The kind of right that the user lacks.
    pub denial: Denial,
    /// The command, key, channel or database.
    pub object: Vec<u8>,
    /// The user's name.
    pub user: Vec<u8>,
}

impl Denied {
    /// Says in words which right the user lacks.
    fn told(&self) -> Cow<'static, str> {
        match self.denial {
            Denial::Command => {
                let (user, name) = (quoted(&self.user, usize::MAX), String::from_utf8_lossy(&self.object));
                format!("User {user} has no permissions to run the '{name}' command").into()
            }
            Denial::Key(_) => "No permissions to access a key".into(),
            Denial::Channel(_) => "No permissions to access a channel".into(),
            Denial::Database(_) => "No permissions to access database".into(),
        }
    }

    /// The error that a client is told.
    #[must_use]
    pub fn error(&self) -> CommandError {
        CommandError::Text(format!("NOPERM {}", self.told()).into())
    }

    /// The error that a script gets in the place of a reply.
    pub(crate) fn error_in_script(&self) -> CommandError {
        CommandError::Text(format!("ERR ACL failure in script: {}", self.told()).into())
    }

    /// The error that EXEC replies in the place of a command that was queued under other rules.
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

    fn reason(&self) -> Reason {
        match self.denial {
            Denial::Command => Reason::Command,
            Denial::Key(_) => Reason::Key,
            Denial::Channel(_) => Reason::Channel,
            Denial::Database(_) => Reason::Database,
        }
    }
}

/// The command, keys, channels and databases of a request, of a client that has selected database `db`.
fn subject<'a>(entry: &Registered, args: Args<'a>, db: u16) -> Request<'a> {
    let command = entry.command;
    let (range, is_pattern) = match command.channels {
        Channels::None => (0..0, false),
        Channels::First => (1..2, false),
        Channels::All => (1..args.len(), false),
        Channels::Patterns => (1..args.len(), true),
    };
    let words = 1 + usize::from(entry.full_name.contains('|'));
    let mut request = Request {
        // Any client may log in, whatever its rights are.
        command: (!command.flags.contains(Flags::NO_AUTH)).then_some(CommandId(entry.index)),
        first_argument: args.get(words),
        channels: range
            .filter_map(|index| args.get(index))
            .map(|name| Channel { name, is_pattern })
            .collect(),
        databases: databases(entry, args, db),
        ..Request::default()
    };
    command.visit_keys(args, &mut |index, spec| {
        let flags = command.key_flags(spec, args);
        let changes = KeyFlags::INSERT | KeyFlags::DELETE | KeyFlags::UPDATE;
        let need = Need { read: flags.contains(KeyFlags::ACCESS), write: flags.intersects(changes) };
        if let Some(name) = args.get(index).filter(|_| !flags.contains(KeyFlags::NOT_KEY)) {
            request.keys.push(Key { name, need });
        }
    });
    request
}

/// The databases that a request works in.
fn databases(entry: &Registered, args: Args<'_>, db: u16) -> Touched {
    let command = entry.command;
    if command.flags.contains(Flags::ALL_DBS) {
        return Touched::All;
    }
    let number = |index: usize| {
        args.get(index).and_then(resp::parse_i64).and_then(|number| u32::try_from(number).ok())
    };
    let has_keys = command.keys.iter().any(|spec| !spec.flags.contains(KeyFlags::NOT_KEY));
    let in_session = has_keys
        || command.flags.intersects(Flags::WRITE | Flags::READONLY)
        || command.categories().contains(Categories::KEYSPACE);
    let session = in_session.then_some(u32::from(db));
    match command.databases {
        Databases::OfSession => {
            session.map_or(Touched::Nothing, |db| Touched::Some([db].into_iter().collect()))
        }
        Databases::Only(places) => Touched::Some(places.iter().filter_map(|place| number(*place)).collect()),
        Databases::Also(place) => Touched::Some(session.into_iter().chain(number(place)).collect()),
        Databases::AlsoBehind(word) => {
            let found = args.iter().position(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
            Touched::Some(session.into_iter().chain(found.and_then(|place| number(place + 1))).collect())
        }
    }
}

/// The commands of a server or a sentinel, for the ACL command to look up.
struct Commands<'a> {
    registry: &'a Registry,
    db: u16,
}

impl Host for Commands<'_> {
    fn resolve<'a>(&self, request: Args<'a>) -> Result<Request<'a>, Unresolved> {
        let entry = self.registry.resolve(request).map_err(|_| Unresolved::NoSuchCommand)?;
        if !entry.command.accepts(request.len()) {
            return Err(Unresolved::Arity(entry.full_name.clone()));
        }
        Ok(subject(entry, request, self.db))
    }
}

impl Engine {
    /// Whether the session's user may run this command with these words. Its arity was checked before.
    ///
    /// # Errors
    /// The first right that the user lacks, and the object that it lacks it for.
    #[inline]
    pub fn permits(&self, session: &Session, entry: &Registered, args: Args<'_>) -> Result<(), Denied> {
        if session.unrestricted { Ok(()) } else { self.look_up(session, entry, args) }
    }

    #[cold]
    fn look_up(&self, session: &Session, entry: &Registered, args: Args<'_>) -> Result<(), Denied> {
        if session.origin == Origin::Master {
            return Ok(());
        }
        let found = || self.users.read().find(&session.client.user.lock()).cloned();
        let request = subject(entry, args, session.db);
        let checked = match session.user.clone().or_else(found) {
            Some(user) => user.check(&request),
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
            Denied { denial, object, user: session.client.user.lock().clone() }
        })
    }

    /// Takes a refusal into ACL LOG. `context`: `toplevel`, `multi` or `lua`.
    pub fn note_denial(&self, session: &Session, now: Millis, context: &'static str, denied: &Denied) {
        let username = session.client.user.lock().clone();
        self.note(session, now, context, (denied.reason(), denied.object.clone(), username));
    }

    fn note(
        &self,
        session: &Session,
        now: Millis,
        context: &'static str,
        (reason, object, username): (Reason, Vec<u8>, Vec<u8>),
    ) {
        let client = String::from_utf8_lossy(&session.client.describe(now, self.commands())).into_owned();
        self.acl_log.lock().add(now, Incident { reason, context, object, username, client });
    }

    /// [`Engine::permits`] for a request that came from the client itself: a refusal is noted.
    ///
    /// # Errors
    /// NOPERM.
    pub fn check_access(
        &self,
        session: &Session,
        entry: &Registered,
        args: Args<'_>,
        now: Millis,
    ) -> Result<(), CommandError> {
        self.permits(session, entry, args).map_err(|denied| {
            let context = if session.in_transaction() { "multi" } else { "toplevel" };
            session.publish(now, entry.index);
            self.note_denial(session, now, context, &denied);
            denied.error()
        })
    }

    /// Logs the session's client in; `object` is the word for it in ACL LOG.
    ///
    /// # Errors
    /// There is no such user, it may not log in, or that is not its password.
    pub fn log_in(
        &self,
        session: &mut Session,
        now: Millis,
        object: &[u8],
        (name, password): (&[u8], &[u8]),
    ) -> Result<(), CommandError> {
        let user = {
            let users = self.users.read();
            users.find(name).filter(|_| users.admits(name, password)).cloned()
        };
        let Some(user) = user else {
            let what = (Reason::Auth, object.to_vec(), name.to_vec());
            self.note(session, now, "toplevel", what);
            return Err(WRONG_PASS);
        };
        session.become_user(name, user);
        Ok(())
    }

    /// Logs the session's client in as the first user among the names in its certificate that may log in. If none may,
    /// the last name is noted.
    pub fn log_in_by_certificate(&self, session: &mut Session, now: Millis, names: &[String]) {
        let user = {
            let users = self.users.read();
            let find = |name: &String| users.find(name.as_bytes()).filter(|user| user.is_enabled()).cloned();
            names.iter().find_map(|name| Some((name, find(name)?)))
        };
        match (user, names.last()) {
            (Some((name, user)), _) => session.become_user(name.as_bytes(), user),
            (None, Some(name)) => {
                let what = (Reason::Certificate, b"tls-cert".to_vec(), name.as_bytes().to_vec());
                self.note(session, now, "toplevel", what);
            }
            (None, None) => {}
        }
    }

    /// The session's client is the default user again, as when it connected.
    pub(crate) fn log_out(&self, session: &mut Session) {
        let user = self.users.read().default_user().clone();
        let is_open = user.is_open();
        session.become_user(acl::DEFAULT, user);
        session.authenticated = is_open;
        session.unrestricted &= is_open;
    }

    /// Whether a new client need not log in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.users.read().default_user().is_open()
    }

    /// Takes the rules of the session's user as they are now. False if that user is gone, and the client must go.
    #[cold]
    pub fn refresh_user(&self, session: &mut Session) -> bool {
        if session.origin == Origin::Master {
            session.unrestricted = true;
            session.users_version = self.users_version();
            return true;
        }
        let users = self.users.read();
        session.users_version = self.users_version();
        let user = users.find(&session.client.user.lock()).cloned();
        session.authenticated |= users.default_user().is_open();
        session.unrestricted =
            session.authenticated && user.as_ref().is_some_and(|user| user.is_unrestricted());
        session.user = user;
        session.user.is_some()
    }

    /// A number that changes whenever users do.
    #[inline]
    #[must_use]
    pub fn users_version(&self) -> u64 {
        self.users_version.load(Ordering::Acquire)
    }

    /// Changes users. What each session knows of them is found to be old from then on.
    pub fn change_users<T>(&self, change: impl FnOnce(&mut Users) -> T) -> T {
        let mut users = self.users.write();
        let changed = change(&mut users);
        self.users_version.fetch_add(1, Ordering::Release);
        changed
    }

    /// Answers those subcommands of ACL that need no more than the users and the log. Returns the clients that are to
    /// go by other rules from now on ([`Engine::await_revoked`]).
    pub fn answer_acl(
        &self,
        session: &mut Session,
        now: Millis,
        args: Args<'_>,
        reply: &mut Writer<'_>,
    ) -> Vec<Arc<Client>> {
        let user = session.client.user.lock().clone();
        let asker = Asker { user: &user, now };
        let commands = Commands { registry: self.commands(), db: session.db };
        let effect = {
            let (mut users, mut log) = (self.users.write(), self.acl_log.lock());
            let effect = acl::answer(&mut users, &mut log, asker, &commands, args, reply);
            if effect != Effect::Nothing {
                self.users_version.fetch_add(1, Ordering::Release);
            }
            effect
        };
        let others = if effect == Effect::Nothing { Vec::new() } else { self.end_clients(Some(session)) };
        if session.users_version != self.users_version() && !self.refresh_user(session) {
            session.closing = true;
        }
        others
    }

    /// Closes the connections of deleted users, and of clients that listen to channels that are now forbidden to them.
    /// The connection of `own` is closed when it has its reply. Returns the other clients, which may still be running
    /// commands that they may no longer run ([`Engine::await_revoked`]).
    #[must_use]
    pub fn end_clients(&self, own: Option<&mut Session>) -> Vec<Arc<Client>> {
        let users = self.users.read();
        let is_to_go = |client: &Client| match users.find(&client.user.lock()) {
            None => true,
            Some(user) => hears_too_much(client, user),
        };
        let own_id = own.as_ref().map(|session| session.id);
        let mut others = self.clients.all();
        others.retain(|client| Some(client.id) != own_id);
        others.iter().filter(|client| is_to_go(client)).for_each(|client| client.kill());
        if let Some(session) = own
            && is_to_go(&session.client)
        {
            session.closing = true;
        }
        others
    }
}

/// Whether a client listens to what its user may no longer hear.
fn hears_too_much(client: &Client, user: &User) -> bool {
    ChannelKind::ALL.into_iter().any(|kind| {
        let is_pattern = kind == ChannelKind::Pattern;
        client.names_of(kind).iter().any(|name| !user.may_hear(Channel { name, is_pattern }))
    })
}

impl Session {
    fn become_user(&mut self, name: &[u8], user: Arc<User>) {
        *self.client.user.lock() = name.to_vec();
        self.authenticated = true;
        self.unrestricted = user.is_unrestricted();
        self.user = Some(user);
    }

    /// Whether the client may read every key there is by this command (SORT with BY or GET of a pattern).
    pub(crate) fn may_read_all_keys(&self, entry: &Registered, args: Args<'_>) -> bool {
        let may = |user: &Arc<User>| user.may_read_all(&subject(entry, args, self.db));
        self.unrestricted || self.user.as_ref().is_none_or(may)
    }
}
