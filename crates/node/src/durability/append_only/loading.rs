//! An append-only file on its way into the data, at the start.
//!
//! The base is loaded as an RDB is, or run like the increments: command by command, as a master's stream is applied.
//! In a file of Redis 4 to 6 commands follow the RDB.
//! The last file may end in the middle of a command or of a transaction, as a crash leaves it: it is cut back to its
//! last whole command (`aof-load-truncated`). Anything else that is wrong stops the start.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::keys;
use engine::{Flow, Gate, Origin, Requests, Session, Worker};
use persistence::aof::{Manifest, ReplAnnotation};
use replication::{Position, ReplId};
use resp::{Batch, Limits, Parser, ProtocolError};
use slot_routing::ReplOffset;

use super::StartAt;
use super::folder::{FilesError, Folder};
use crate::durability::Durability;
use crate::durability::loading::{LoadError, Loaded, clear, replace_by_file};
use crate::process::time;
use crate::replication::apply::begin_of_transaction;

/// So much is read and run at once, or a command if it is longer.
const PIECE: usize = 1 << 20;
/// An annotation is no longer than this.
const LONGEST_LINE: usize = 4096;
/// Something is missing between two files, or there twice.
const NOT_JOINED: &str = "what follows does not begin where what was before ends";

/// Why the files were not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AofError {
    #[error("{0}")]
    Files(#[from] FilesError),
    #[error("{}: {error}", file.display())]
    Base { file: PathBuf, error: LoadError },
    #[error("{}: {error}", file.display())]
    Io { file: PathBuf, error: io::Error },
    #[error(
        "Bad file format reading the append only file {}: make a backup of your AOF file, then use redoubt check-aof \
         --fix <filename.manifest> (at offset {offset}: {reason})",
        name_of(file)
    )]
    Format { file: PathBuf, offset: u64, reason: String },
    #[error(
        "Unexpected end of file reading the append only file {}. You can: 1) Make a backup of your AOF file, then use \
         redoubt check-aof --fix <filename.manifest>. 2) Alternatively you can set the 'aof-load-truncated' \
         configuration option to yes and restart the server. (It is whole up to offset {whole}.)",
        name_of(file)
    )]
    Truncated { file: PathBuf, whole: u64 },
}

/// The result of running the files' commands.
#[derive(Debug, Default)]
struct Ran {
    /// Where the stream stands, as far as the files say.
    position: Option<Position>,
    /// Where it stood at the beginning of the file. The commands there before the first annotation of a place may be no
    /// part of the stream: on a replica, the choice of a database.
    begin: Option<Position>,
}

impl Ran {
    /// Takes note of where in the stream an annotation says that the file is. `false`: that is not where it must be.
    fn take_place(&mut self, line: &[u8]) -> bool {
        let Some(ReplAnnotation { history, offset }) = ReplAnnotation::of_annotation(line) else {
            return true;
        };
        let Ok(id) = ReplId::parse(history.as_bytes()) else { return true };
        // A history goes on under another name from the same place on.
        let follows = |at: Position| at.offset.0 == offset;
        let known = self.position.into_iter().chain(self.begin.take());
        let is_right = self.position.is_none() || known.into_iter().any(follows);
        self.position = Some(Position { id, offset: ReplOffset(offset) });
        is_right
    }
}

/// Replaces all data by that of the append-only file, if there is one, and goes on with it; says what was loaded.
pub(crate) fn load(durability: &Arc<Durability>) -> Result<Option<Loaded>, AofError> {
    let folder = Folder::new(&durability.config).map_err(FilesError::from)?;
    let Some(manifest) = folder.find()? else { return Ok(None) };
    let (loaded, ran, db) = run_files(durability, &folder.to_load(&manifest))?;
    durability.applied.select(db);
    if let Some(position) = ran.position {
        durability.log.adopt(position);
    }
    go_on(durability, folder, manifest, db)?;
    Ok(Some(loaded))
}

/// Brings the rest of the log into the file, and replaces all data by the file's (DEBUG LOADAOF). The history goes on:
/// no client writes meanwhile. `Ok(false)`: there is no such file, or it is just being rewritten.
pub(crate) fn reload(durability: &Arc<Durability>) -> Result<bool, AofError> {
    let (shared, engine) = (&durability.append_only, &durability.engine);
    if !shared.is_on() || shared.state.lock().rewrites.is_running() {
        return Ok(false);
    }
    engine.settings.set_gate(Gate::LOADING, true);
    engine.drain();
    shared.stop();
    durability.log.keep_open(true);
    let outcome = load_again(durability);
    engine.touch_all_watched();
    engine.settings.set_gate(Gate::LOADING, false);
    outcome
}

fn load_again(durability: &Arc<Durability>) -> Result<bool, AofError> {
    let folder = Folder::new(&durability.config).map_err(FilesError::from)?;
    let Some(manifest) = folder.find()? else { return Ok(false) };
    let (.., db) = run_files(durability, &folder.to_load(&manifest))?;
    go_on(durability, folder, manifest, db).map(|()| true)
}

/// Replaces all data by that of the files; says also which database the stream has selected at their end.
fn run_files(durability: &Durability, to_load: &[(PathBuf, bool)]) -> Result<(Loaded, Ran, u16), AofError> {
    let mut loaded = Loaded::default();
    let mut ran = Ran::default();
    clear(durability);
    durability.applied.imports.forget(&durability.engine);
    let mut session = Session::new(0, Origin::Master, true);
    let last = to_load.last().map(|(path, _)| path);
    for (path, is_base) in to_load {
        let began = time::instant();
        let told = |kind: &str| {
            let took = time::instant().since(began).as_secs_f64();
            tracing::info!("DB loaded from {kind} file {}: {took:.3} seconds", name_of(path));
        };
        let in_file = |error| AofError::Io { file: path.clone(), error };
        let mut begin = 0;
        if *is_base && is_rdb(path).map_err(in_file)? {
            tracing::info!("Reading RDB base file on AOF loading...");
            // No key is dropped as expired: a later command may have given it more time.
            loaded = replace_by_file(durability, path, false)
                .map_err(|error| AofError::Base { file: path.clone(), error })?;
            ran.position = position_of(&loaded);
            begin = loaded.bytes;
            if path.metadata().map_err(in_file)?.len() <= begin {
                session.db = loaded.stream_db.unwrap_or(0);
                told("base");
                continue;
            }
        }
        let is_last = last == Some(path);
        let truncates = is_last && durability.config.get(keys::AOF_LOAD_TRUNCATED);
        run_file(durability, &mut session, &Part { path, begin, truncates }, &mut ran)?;
        told(if *is_base { "base" } else { "incr" });
    }
    Ok((loaded, ran, session.db))
}

/// Follows the log from here on, where the stream has selected `db`.
fn go_on(durability: &Arc<Durability>, folder: Folder, manifest: Manifest, db: u16) -> Result<(), AofError> {
    {
        let turn = durability.engine.keyspace.script_turn();
        let _all = keyspace::LockedSlots::all(&turn);
        let mut log = durability.log.lock();
        durability.log.open(&mut log);
    }
    let last = folder.last_increment(&manifest).map_err(FilesError::from)?;
    if let Some(last) = manifest.increments.last() {
        tracing::info!("Opening AOF incr file {} on server start", last.name);
    }
    let from = last.map_or(StartAt::Base { db }, StartAt::Increment);
    Ok(durability.append_only.start(folder, manifest, from).map_err(FilesError::from)?)
}

/// Where the stream stood when an RDB was written.
pub(crate) fn position_of(loaded: &Loaded) -> Option<Position> {
    let id = ReplId::parse(loaded.repl_id.as_deref()?).ok()?;
    let offset = u64::try_from(loaded.repl_offset?).ok()?;
    Some(Position { id, offset: ReplOffset(offset) })
}

/// Without its folder.
fn name_of(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn is_rdb(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(6).read_to_end(&mut head)?;
    Ok(head.starts_with(b"REDIS") || head.starts_with(b"VALKEY"))
}

/// A file of commands, from somewhere on.
#[derive(Debug)]
struct Part<'a> {
    path: &'a Path,
    begin: u64,
    /// Whether it may be cut back to its last whole command.
    truncates: bool,
}

/// Runs the commands of a file. If it ends in the middle of one, it is cut back to the last whole one, if it may be.
fn run_file(
    durability: &Durability,
    session: &mut Session,
    &Part { path, begin, truncates }: &Part<'_>,
    ran: &mut Ran,
) -> Result<(), AofError> {
    let in_file = |error| AofError::Io { file: path.to_owned(), error };
    let mut file = File::open(path).map_err(in_file)?;
    file.seek(SeekFrom::Start(begin)).map_err(in_file)?;
    let len = file.metadata().map_err(in_file)?.len();
    let mut reader = Reader::new(durability, file, begin);
    ran.begin = ran.position;
    let outcome = reader.run(session, ran);
    let whole = reader.whole;
    durability.engine.discard(session);
    match outcome {
        Ok(()) if whole == len => Ok(()),
        Ok(()) if truncates => {
            let name = name_of(path);
            tracing::warn!("!!! Warning: short read while loading the AOF file {name}!!!");
            tracing::warn!("!!! Truncating the AOF {name} at offset {whole} !!!");
            let file = OpenOptions::new().write(true).open(path).map_err(in_file)?;
            file.set_len(whole).and_then(|()| file.sync_all()).map_err(in_file)?;
            tracing::warn!("AOF {name} loaded anyway because aof-load-truncated is enabled");
            Ok(())
        }
        Ok(()) => Err(AofError::Truncated { file: path.to_owned(), whole }),
        Err(Stop::Io(error)) => Err(in_file(error)),
        Err(Stop::Format(reason)) => {
            Err(AofError::Format { file: path.to_owned(), offset: reader.offset, reason })
        }
    }
}

/// Why reading ended before the file did.
enum Stop {
    Io(io::Error),
    Format(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// One file, piece by piece.
struct Reader<'a> {
    durability: &'a Durability,
    worker: Worker,
    file: File,
    /// Read and not yet run; begins with a command or an annotation.
    input: Vec<u8>,
    parser: Parser,
    batch: Batch,
    /// Where `input` begins.
    offset: u64,
    /// Up to where commands and transactions are whole.
    whole: u64,
}

impl<'a> Reader<'a> {
    fn new(durability: &'a Durability, file: File, begin: u64) -> Self {
        let worker = durability.engine.worker(time::nanos);
        Self {
            durability,
            worker,
            file,
            input: Vec::new(),
            parser: Parser::new(),
            batch: Batch::default(),
            offset: begin,
            whole: begin,
        }
    }

    fn run(&mut self, session: &mut Session, ran: &mut Ran) -> Result<(), Stop> {
        loop {
            let before = self.input.len();
            // A long command gets twice the room each time.
            let room = PIECE.max(before);
            (&mut self.file).take(room as u64).read_to_end(&mut self.input)?;
            if self.input.len() == before {
                return Ok(());
            }
            while self.run_some(session, ran)? {}
        }
    }

    /// Runs the commands up to the next annotation, and that; says whether there was one.
    fn run_some(&mut self, session: &mut Session, ran: &mut Ran) -> Result<bool, Stop> {
        let limits = Limits { max_bulk_len: i64::from(u32::MAX), inline: false, ..Limits::default() };
        self.batch.clear();
        let parsed = self.parser.parse(&mut self.input, &mut self.batch, &limits);
        self.run_batch(session)?;
        let mut done = parsed.consumed;
        if let Some(position) = &mut ran.position {
            position.offset.0 += done as u64;
        }
        let mut more = false;
        match parsed.error {
            None => {}
            Some(ProtocolError::ExpectedAsterisk(b'#')) => {
                let rest = &self.input[done..];
                match rest.iter().position(|byte| *byte == b'\n') {
                    Some(end) => {
                        if !ran.take_place(&rest[..=end]) {
                            self.offset += done as u64;
                            return Err(Stop::Format(NOT_JOINED.to_owned()));
                        }
                        done += end + 1;
                        more = true;
                    }
                    None if rest.len() > LONGEST_LINE => {
                        self.offset += done as u64;
                        return Err(Stop::Format("an annotation without an end".to_owned()));
                    }
                    None => {}
                }
            }
            Some(error) => {
                self.offset += done as u64;
                return Err(Stop::Format(error.to_string()));
            }
        }
        if !session.in_transaction() {
            self.whole = self.offset + done as u64;
        } else if let Some(begin) = begin_of_transaction(&self.input, &self.batch) {
            self.whole = self.offset + begin as u64;
        }
        self.input.drain(..done);
        self.offset += done as u64;
        Ok(more)
    }

    fn run_batch(&mut self, session: &mut Session) -> Result<(), Stop> {
        let Durability { engine, commands, .. } = self.durability;
        let now = time::now();
        let (mut next, mut replies) = (0, Vec::new());
        while next < self.batch.len() {
            let (after, flow) = commands.on(engine).run(
                &mut self.worker,
                session,
                now,
                Requests { buffer: &self.input, batch: &self.batch, from: next },
                &mut replies,
            );
            if let Some(error) = first_error(&replies) {
                if error.starts_with("ERR unknown command") {
                    return Err(Stop::Format(error));
                }
                tracing::warn!("A command of the append only file failed: {error}");
            }
            replies.clear();
            if matches!(flow, Flow::Node(_)) {
                self.durability.applied.imports.on_stream(engine, self.batch.args(after, &self.input));
            }
            // Commands that the shell carries out (PING's kin, REPLCONF) change no data.
            next = if matches!(flow, Flow::Node(_) | Flow::Paused) { after + 1 } else { after };
        }
        Ok(())
    }
}

fn first_error(replies: &[u8]) -> Option<String> {
    if !replies.contains(&b'-') {
        return None;
    }
    let mut rest = replies;
    while let Ok(Some((reply, len))) = resp::parse_value(rest) {
        if let resp::Value::Error(text) = reply {
            return Some(text);
        }
        rest = &rest[len..];
    }
    None
}

#[cfg(test)]
mod tests;
