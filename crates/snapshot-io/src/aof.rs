//! An append-only file on its way into the data, at the start.
//!
//! The base is loaded as an RDB is, or run like the increments: command by command, as a master's stream is applied.
//! In a file of Redis 4 to 6 commands follow the RDB.
//! The last file may end in the middle of a command or of a transaction, as a crash leaves it: it is cut back to its
//! last whole command (`aof-load-truncated`). Anything else that is wrong stops the start.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use append_only::{AofDirectory, AofFilesError, AofStorage, FileToLoad};
use engine::{CommandError, Flow, Origin, Requests, Session, Worker};
use persistence::Disk;
use persistence::aof::{Manifest, ReplAnnotation};
use replication::{Position, ReplId, last_multi_offset};
use resp::{Batch, Limits, Parser, ProtocolError};
use slot_routing::ReplOffset;

use crate::host::Told;
use crate::rdb::{LoadError, Loaded, Loader, clear};

/// So much is read and run at once, or a command if it is longer.
const PIECE: usize = 1 << 20;
/// An annotation is no longer than this.
const LONGEST_LINE: usize = 4096;
/// Something is missing between two files, or there twice.
const NOT_JOINED: &str = "what follows does not begin where what was before ends";

/// Why the files were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum AofError {
    /// The manifest is none, or the folder cannot be read.
    #[error("{0}")]
    Files(#[from] AofFilesError),
    /// The base is no RDB that can be loaded.
    #[error("{}: {error}", file.display())]
    Base {
        /// Which.
        file: PathBuf,
        /// The reason.
        error: LoadError,
    },
    /// A file cannot be read.
    #[error("{}: {error}", file.display())]
    Io {
        /// Which.
        file: PathBuf,
        /// The error that the system reports.
        error: io::Error,
    },
    /// A file is none of commands.
    #[error(
        "Bad file format reading the append only file {}: make a backup of your AOF file, then use redoubt check-aof \
         --fix <filename.manifest> (at offset {offset}: {reason})",
        name_of(file)
    )]
    Format {
        /// Which.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// The reason.
        reason: String,
    },
    /// A file has a command that there is not, or not with so many words.
    #[error(
        "Error reading the append only file {}, error: {} (at offset {offset})",
        name_of(file),
        error.strip_prefix("ERR ").unwrap_or(error)
    )]
    Command {
        /// Which.
        file: PathBuf,
        /// Where the command begins.
        offset: u64,
        /// The reply to it.
        error: String,
    },
    /// A file that is followed by others ends too early.
    #[error(
        "Fatal error: the truncated file is not the last file: {} is whole up to offset {whole}, and what follows it would \
         be lost. Make a backup of your AOF files, and repair them by hand",
        name_of(file)
    )]
    TruncatedBefore {
        /// Which.
        file: PathBuf,
        /// Up to where it is whole.
        whole: u64,
    },
    /// The last file ends too early.
    #[error(
        "Unexpected end of file reading the append only file {}. You can: 1) Make a backup of your AOF file, then use \
         redoubt check-aof --fix <filename.manifest>. 2) Alternatively you can set the 'aof-load-truncated' \
         configuration option to yes and restart the server. (It is whole up to offset {whole}.)",
        name_of(file)
    )]
    Truncated {
        /// Which.
        file: PathBuf,
        /// Up to where it is whole.
        whole: u64,
    },
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

/// The data of an append-only file, which is here now.
#[derive(Debug)]
pub struct LoadedFiles {
    /// Its base, if that was an RDB.
    pub base: Loaded,
    /// Where the stream stands, as far as the files say.
    pub position: Option<Position>,
    /// The database that the stream has selected at their end.
    pub db: u16,
}

/// A file of commands, from somewhere on.
#[derive(Debug)]
struct Part<'a> {
    file: &'a FileToLoad,
    begin: u64,
    /// Whether files may be cut back to their last whole command (`aof-load-truncated`): the last may, and no other.
    truncates: bool,
}

impl Loader<'_> {
    /// Replaces all data by that of the files. The last is cut back to its last whole command if `truncates`.
    ///
    /// # Errors
    /// They cannot be read, or are not what they are to be.
    pub fn run_files<D: AofStorage>(
        &self,
        folder: &AofDirectory<D>,
        manifest: &Manifest,
        truncates: bool,
    ) -> Result<LoadedFiles, AofError> {
        let mut base = Loaded::default();
        let mut ran = Ran::default();
        clear(self.engine);
        let mut session = Session::new(0, Origin::Master, true);
        for file in &folder.files_to_load(manifest) {
            self.host.tell(Told::FileBegins);
            let told = Told::FileLoaded { name: &file.name, is_base: file.is_base };
            let path = || folder.disk.path_of(&file.name);
            let in_file = |error| AofError::Io { file: path(), error };
            let mut begin = 0;
            if file.is_base && is_rdb(&folder.disk, &file.name).map_err(in_file)? {
                self.host.tell(Told::RdbBase);
                let len = folder.disk.len(&file.name).map_err(in_file)?;
                let input = folder.disk.read(&file.name).map_err(in_file)?;
                // No key is dropped as expired: a later command may have given it more time.
                base = self
                    .replace(input, len, false, || true)
                    .map_err(|error| AofError::Base { file: path(), error })?;
                ran.position = position_of(&base);
                begin = base.bytes;
                if len <= begin {
                    session.db = base.stream_db.unwrap_or(0);
                    self.host.tell(told);
                    continue;
                }
            }
            let part = Part { file, begin, truncates };
            self.run_file(&folder.disk, &mut session, &part, &mut ran)?;
            self.host.tell(told);
        }
        Ok(LoadedFiles { base, position: ran.position, db: session.db })
    }

    /// Runs the commands of a file. If it ends in the middle of one, it is cut back to the last whole one, if it may
    /// be.
    fn run_file<D: AofStorage>(
        &self,
        disk: &D,
        session: &mut Session,
        &Part { file, begin, truncates }: &Part<'_>,
        ran: &mut Ran,
    ) -> Result<(), AofError> {
        let (name, path) = (&file.name, || disk.path_of(&file.name));
        let in_file = |error| AofError::Io { file: path(), error };
        let mut input = disk.read(name).map_err(in_file)?;
        input.seek(SeekFrom::Start(begin)).map_err(in_file)?;
        let len = disk.len(name).map_err(in_file)?;
        match self.run_commands(session, input, begin, ran) {
            Ok(whole) if whole == len => Ok(()),
            Ok(whole) if truncates && !file.is_last => Err(AofError::TruncatedBefore { file: path(), whole }),
            Ok(whole) if truncates => {
                self.host.tell(Told::Truncating { name, whole });
                disk.cut_back(name, whole).map_err(in_file)?;
                self.host.tell(Told::Truncated(name));
                Ok(())
            }
            Ok(whole) => Err(AofError::Truncated { file: path(), whole }),
            Err(Stop::Io(error)) => Err(in_file(error)),
            Err(Stop::Format { offset, reason }) => Err(AofError::Format { file: path(), offset, reason }),
            Err(Stop::Command { offset, error }) => Err(AofError::Command { file: path(), offset, error }),
        }
    }

    /// Runs commands, of which the first is at `begin` of its file. Returns up to where they, and transactions, are
    /// whole.
    fn run_commands(
        &self,
        session: &mut Session,
        input: impl Read,
        begin: u64,
        ran: &mut Ran,
    ) -> Result<u64, Stop> {
        let mut reader = Reader::new(self, input, begin);
        ran.begin = ran.position;
        let outcome = reader.run(session, ran);
        if session.in_transaction()
            && let Some(position) = &mut ran.position
        {
            // The commands of a transaction without an end are not run, and leave the file.
            position.offset.0 -= reader.offset - reader.whole;
        }
        self.engine.discard(session);
        outcome.map(|()| reader.whole)
    }
}

/// Where the stream stood when an RDB was written.
#[must_use]
pub fn position_of(loaded: &Loaded) -> Option<Position> {
    let id = ReplId::parse(loaded.repl_id.as_deref()?).ok()?;
    let offset = u64::try_from(loaded.repl_offset?).ok()?;
    Some(Position { id, offset: ReplOffset(offset) })
}

/// Without its folder.
fn name_of(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn is_rdb(disk: &impl Disk, name: &str) -> io::Result<bool> {
    let mut head = Vec::new();
    disk.read(name)?.take(6).read_to_end(&mut head)?;
    Ok(head.starts_with(b"REDIS") || head.starts_with(b"VALKEY"))
}

/// Why reading ended before the file did.
#[derive(Debug)]
enum Stop {
    Io(io::Error),
    /// The bytes at this place of the file are none that it can have.
    Format {
        offset: u64,
        reason: String,
    },
    /// There is no such command as the one at this place, or not with so many words.
    Command {
        offset: u64,
        error: String,
    },
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// One file, piece by piece.
struct Reader<'a, R> {
    loader: &'a Loader<'a>,
    worker: Worker,
    file: R,
    /// Read and not yet run; begins with a command or an annotation.
    input: Vec<u8>,
    parser: Parser,
    batch: Batch,
    /// Where `input` begins.
    offset: u64,
    /// Up to where commands and transactions are whole.
    whole: u64,
}

impl<'a, R: Read> Reader<'a, R> {
    fn new(loader: &'a Loader<'a>, file: R, begin: u64) -> Self {
        let worker = loader.engine.worker(loader.host.nanos());
        Self {
            loader,
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
                            return Err(self.stop(done, NOT_JOINED));
                        }
                        done += end + 1;
                        more = true;
                    }
                    None if rest.len() > LONGEST_LINE => {
                        return Err(self.stop(done, "an annotation without an end"));
                    }
                    None => {}
                }
            }
            Some(error) => {
                return Err(self.stop(done, &error.to_string()));
            }
        }
        if !session.in_transaction() {
            self.whole = self.offset + done as u64;
        } else if let Some(begin) = last_multi_offset(&self.input, &self.batch) {
            self.whole = self.offset + begin as u64;
        }
        self.input.drain(..done);
        self.offset += done as u64;
        Ok(more)
    }

    /// Something is wrong so many bytes into the input.
    fn stop(&self, done: usize, reason: &str) -> Stop {
        Stop::Format { offset: self.offset + done as u64, reason: reason.to_owned() }
    }

    /// The first of these commands that there is not, or not with so many words, and the reply to it.
    fn first_unknown(&self, numbers: Range<usize>) -> Option<(usize, CommandError)> {
        let registry = self.loader.commands.registry();
        let fault = |number: usize| registry.check(self.batch.args(number, &self.input)).err();
        numbers.into_iter().find_map(|number| Some((number, fault(number)?)))
    }

    fn run_batch(&mut self, session: &mut Session) -> Result<(), Stop> {
        let Loader { engine, commands, host, .. } = self.loader;
        let now = host.now();
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
                if let Some((index, error)) = self.first_unknown(next..after) {
                    let offset = self.offset + self.batch.consumed(index) as u64;
                    return Err(Stop::Command { offset, error: error.to_string() });
                }
                host.tell(Told::CommandFailed(&error));
            }
            replies.clear();
            if matches!(flow, Flow::Node(_)) {
                host.on_command(self.batch.args(after, &self.input));
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
