//! Loads the append-only file at startup.
//!
//! The base is loaded as an RDB, or executed command by command. The increments are executed in the same way as a
//! master's replication stream. In files of Redis 4 to 6, an RDB is followed by commands. After a crash, the last file
//! may end in the middle of a command or transaction; it is then truncated after its last complete command
//! (`aof-load-truncated`). Any other error aborts the startup.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use append_only::{AofDirectory, AofFilesError, AofStorage, FileToLoad};
use engine::{CommandError, CommandOrigin, DispatchStatus, PipelinedRequests, Session, Worker};
use persistence::Disk;
use persistence::aof::{Manifest, ReplAnnotation};
use replication::{ReplId, ReplPosition, last_multi_offset};
use resp::{Batch, ParseLimits, Parser, ProtocolError};
use slot_routing::ReplOffset;

use crate::host::LoadEvent;
use crate::rdb::{LoadError, LoadResult, Loader, clear_for_loading};

/// Number of bytes read and executed at once; a longer command extends the buffer.
const BUFFER_LEN: usize = 1 << 20;
/// Maximum length of an annotation line in bytes.
const MAX_LINE_LEN: usize = 4096;
/// The error if the replication position of a file contradicts the end of the previous file.
const POSITION_MISMATCH_ERROR: &str = "what follows does not begin where what was before ends";

/// Why the files were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum AofError {
    /// The manifest is malformed, or the directory cannot be read.
    #[error("{0}")]
    FileList(#[from] AofFilesError),
    /// The base is not a loadable RDB.
    #[error("{}: {error}", file.display())]
    Base {
        /// The base file.
        file: PathBuf,
        /// Why the base was rejected.
        error: LoadError,
    },
    /// A file cannot be read.
    #[error("{}: {error}", file.display())]
    Io {
        /// The file that cannot be read.
        file: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file contains bytes that are not a command.
    #[error(
        "Bad file format reading the append only file {}: make a backup of your AOF file, then use redoubt check-aof \
         --fix <filename.manifest> (at offset {offset}: {reason})",
        file_name(file)
    )]
    MalformedBytes {
        /// The malformed file.
        file: PathBuf,
        /// File offset of the malformed bytes.
        offset: u64,
        /// What is wrong with the bytes at `offset`.
        reason: String,
    },
    /// A command does not exist or has a wrong number of arguments.
    #[error(
        "Error reading the append only file {}, error: {} (at offset {offset})",
        file_name(file),
        error.strip_prefix("ERR ").unwrap_or(error)
    )]
    Command {
        /// The file that contains the command.
        file: PathBuf,
        /// File offset of the command.
        offset: u64,
        /// The error that the server would reply to the command.
        error: String,
    },
    /// A file other than the last one ends in the middle of a command.
    #[error(
        "Fatal error: the truncated file is not the last file: {} is complete only up to offset {complete_bytes}, and \
         loading it would lose the later files. Make a backup of your AOF files, and repair them by hand",
        file_name(file)
    )]
    TruncatedBefore {
        /// The incomplete file.
        file: PathBuf,
        /// Offset up to which the file consists of complete commands.
        complete_bytes: u64,
    },
    /// The last file ends in the middle of a command, and truncating it is not permitted.
    #[error(
        "Unexpected end of file reading the append only file {}. You can: 1) Make a backup of your AOF file, then use \
         redoubt check-aof --fix <filename.manifest>. 2) Alternatively you can set the 'aof-load-truncated' \
         configuration option to yes and restart the server. (It is complete up to offset {complete_bytes}.)",
        file_name(file)
    )]
    Truncated {
        /// The incomplete file.
        file: PathBuf,
        /// Offset up to which the file consists of complete commands.
        complete_bytes: u64,
    },
}

/// The replication position reached while executing the commands of the files.
#[derive(Debug, Default)]
struct ReplayState {
    /// The replication position after the last executed command; `None` while no annotation has stated it.
    position: Option<ReplPosition>,
    /// The replication position at the start of the current file. The commands before the first position annotation may
    /// not belong to the stream; on a replica, for example, a SELECT precedes it.
    file_start: Option<ReplPosition>,
}

impl ReplayState {
    /// Applies an annotation line. Returns false if the line states a replication position that contradicts the
    /// preceding commands.
    fn apply_position(&mut self, line: &[u8]) -> bool {
        let Some(ReplAnnotation { history, offset }) = ReplAnnotation::parse(line) else {
            return true;
        };
        let Ok(id) = ReplId::parse(history.as_bytes()) else { return true };
        if id == ReplId::NONE {
            // The following commands are not part of the stream. The next annotation states the position after them.
            (self.position, self.file_start) = (None, None);
            return true;
        }
        // The replication id may change, but the offset continues.
        let follows = |at: ReplPosition| at.offset.0 == offset;
        let known = self.position.into_iter().chain(self.file_start.take());
        let is_right = self.position.is_none() || known.into_iter().any(follows);
        self.position = Some(ReplPosition { id, offset: ReplOffset(offset) });
        is_right
    }
}

/// The result of loading an append-only file.
#[derive(Debug)]
pub struct AofLoadResult {
    /// The result of loading the base if it was an RDB; otherwise empty.
    pub base: LoadResult,
    /// The replication position at the end; `None` if the files do not state it.
    pub position: Option<ReplPosition>,
    /// The database selected by the last command.
    pub selected_db: u16,
}

/// The commands of a file, which may start after an RDB.
#[derive(Debug)]
struct AofCommands<'a> {
    file: &'a FileToLoad,
    start: u64,
    /// Whether an incomplete file may be truncated after its last complete command (`aof-load-truncated`). True only
    /// for the last file.
    may_truncate: bool,
}

impl Loader<'_> {
    /// Replaces all data with that of the files. If `may_truncate` is set and the last file is incomplete, it is
    /// truncated after its last complete command.
    ///
    /// # Errors
    /// The files cannot be read or are malformed.
    pub fn run_files<D: AofStorage>(
        &self,
        directory: &AofDirectory<D>,
        manifest: &Manifest,
        may_truncate: bool,
    ) -> Result<AofLoadResult, AofError> {
        let mut base = LoadResult::default();
        let mut replay = ReplayState::default();
        clear_for_loading(self.engine);
        let mut session = Session::new(0, CommandOrigin::Master, true);
        for file in &directory.files_to_load(manifest) {
            self.host.report_event(LoadEvent::FileStarted);
            let event = LoadEvent::FileLoaded { name: &file.name, is_base: file.is_base };
            let path = || directory.disk.path_of(&file.name);
            let in_file = |error| AofError::Io { file: path(), error };
            let mut begin = 0;
            if file.is_base && is_rdb_file(&directory.disk, &file.name).map_err(in_file)? {
                self.host.report_event(LoadEvent::RdbBase);
                let len = directory.disk.len(&file.name).map_err(in_file)?;
                let input = directory.disk.read(&file.name).map_err(in_file)?;
                // Keep expired keys, because a later command may extend their lifetime.
                base = self
                    .replace_dataset(input, len, false, || true)
                    .map_err(|error| AofError::Base { file: path(), error })?;
                replay.position = replication_position(&base);
                begin = base.rdb_bytes;
                if len <= begin {
                    session.select(base.stream_db.unwrap_or(0));
                    self.host.report_event(event);
                    continue;
                }
            }
            let part = AofCommands { file, start: begin, may_truncate };
            self.run_file(&directory.disk, &mut session, &part, &mut replay)?;
            self.host.report_event(event);
        }
        Ok(AofLoadResult { base, position: replay.position, selected_db: session.db() })
    }

    /// Executes the commands of a file. Truncates the file if it ends in the middle of a command and may be truncated.
    fn run_file<D: AofStorage>(
        &self,
        disk: &D,
        session: &mut Session,
        &AofCommands { file, start: begin, may_truncate: truncates }: &AofCommands<'_>,
        replay: &mut ReplayState,
    ) -> Result<(), AofError> {
        let (name, path) = (&file.name, || disk.path_of(&file.name));
        let in_file = |error| AofError::Io { file: path(), error };
        let mut input = disk.read(name).map_err(in_file)?;
        input.seek(SeekFrom::Start(begin)).map_err(in_file)?;
        let len = disk.len(name).map_err(in_file)?;
        match self.run_commands(session, input, begin, replay) {
            Ok(whole) if whole == len => Ok(()),
            Ok(whole) if truncates && !file.is_last => {
                Err(AofError::TruncatedBefore { file: path(), complete_bytes: whole })
            }
            Ok(whole) if truncates => {
                self.host.report_event(LoadEvent::Truncating { name, complete_bytes: whole });
                disk.truncate(name, whole).map_err(in_file)?;
                self.host.report_event(LoadEvent::Truncated(name));
                Ok(())
            }
            Ok(whole) => Err(AofError::Truncated { file: path(), complete_bytes: whole }),
            Err(ReplayError::Io(error)) => Err(in_file(error)),
            Err(ReplayError::Format { offset, reason }) => {
                Err(AofError::MalformedBytes { file: path(), offset, reason })
            }
            Err(ReplayError::Command { offset, error }) => {
                Err(AofError::Command { file: path(), offset, error })
            }
        }
    }

    /// Executes commands that start at offset `begin` of a file. Returns the offset up to which commands and
    /// transactions are complete.
    fn run_commands(
        &self,
        session: &mut Session,
        input: impl Read,
        begin: u64,
        replay: &mut ReplayState,
    ) -> Result<u64, ReplayError> {
        let mut reader = AofExecutor::new(self, input, begin);
        replay.file_start = replay.position;
        let outcome = reader.run(session, replay);
        if session.in_transaction()
            && let Some(position) = &mut replay.position
        {
            // Exclude the commands of an incomplete transaction: they were not executed, and are truncated.
            position.offset.0 -= reader.offset - reader.complete_bytes;
        }
        self.engine.discard_transaction(session);
        outcome.map(|()| reader.complete_bytes)
    }
}

/// Returns the replication position at which an RDB was written; `None` if it does not state one.
#[must_use]
pub fn replication_position(loaded: &LoadResult) -> Option<ReplPosition> {
    let id = ReplId::parse(loaded.repl_id.as_deref()?).ok()?;
    let offset = u64::try_from(loaded.repl_offset?).ok()?;
    Some(ReplPosition { id, offset: ReplOffset(offset) })
}

/// Returns the file name without its directory.
fn file_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn is_rdb_file(disk: &impl Disk, name: &str) -> io::Result<bool> {
    let mut head = Vec::new();
    disk.read(name)?.take(6).read_to_end(&mut head)?;
    Ok(head.starts_with(b"REDIS") || head.starts_with(b"VALKEY"))
}

/// Why executing a file stopped before its end.
#[derive(Debug)]
enum ReplayError {
    Io(io::Error),
    /// The bytes at this offset are not a valid command.
    Format {
        offset: u64,
        reason: String,
    },
    /// The command at this offset is unknown or has a wrong number of arguments.
    Command {
        offset: u64,
        error: String,
    },
}

impl From<io::Error> for ReplayError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads the commands of a file and executes them.
struct AofExecutor<'a, R> {
    loader: &'a Loader<'a>,
    worker: Worker,
    file: R,
    /// Bytes that were read but not executed yet. They start with a command or an annotation.
    input: Vec<u8>,
    parser: Parser,
    batch: Batch,
    /// Offset in the file of the first byte of `input`.
    offset: u64,
    /// Offset up to which commands and transactions are complete.
    complete_bytes: u64,
}

impl<'a, R: Read> AofExecutor<'a, R> {
    fn new(loader: &'a Loader<'a>, file: R, begin: u64) -> Self {
        let worker = loader.engine.new_worker(loader.host.nanos_clock());
        Self {
            loader,
            worker,
            file,
            input: Vec::new(),
            parser: Parser::new(),
            batch: Batch::default(),
            offset: begin,
            complete_bytes: begin,
        }
    }

    fn run(&mut self, session: &mut Session, replay: &mut ReplayState) -> Result<(), ReplayError> {
        loop {
            let before = self.input.len();
            // Double the buffer with each read if a command is longer than the buffer.
            let room = BUFFER_LEN.max(before);
            (&mut self.file).take(room as u64).read_to_end(&mut self.input)?;
            if self.input.len() == before {
                return Ok(());
            }
            while self.run_until_annotation(session, replay)? {}
        }
    }

    /// Executes the commands up to the next annotation and applies it. Returns whether an annotation was found.
    fn run_until_annotation(
        &mut self,
        session: &mut Session,
        replay: &mut ReplayState,
    ) -> Result<bool, ReplayError> {
        let limits =
            ParseLimits { max_bulk_len: i64::from(u32::MAX), allows_inline: false, ..ParseLimits::default() };
        self.batch.clear();
        let parsed = self.parser.parse(&mut self.input, &mut self.batch, &limits);
        self.run_batch(session)?;
        let mut done = parsed.consumed_bytes;
        if let Some(position) = &mut replay.position {
            position.offset.0 += done as u64;
        }
        let mut more = false;
        match parsed.error {
            None => {}
            Some(ProtocolError::ExpectedAsterisk(b'#')) => {
                let rest = &self.input[done..];
                match rest.iter().position(|byte| *byte == b'\n') {
                    Some(end) => {
                        if !replay.apply_position(&rest[..=end]) {
                            return Err(self.format_error_at(done, POSITION_MISMATCH_ERROR));
                        }
                        done += end + 1;
                        more = true;
                    }
                    None if rest.len() > MAX_LINE_LEN => {
                        return Err(self.format_error_at(done, "an annotation without an end"));
                    }
                    None => {}
                }
            }
            Some(error) => {
                return Err(self.format_error_at(done, &error.to_string()));
            }
        }
        if !session.in_transaction() {
            self.complete_bytes = self.offset + done as u64;
        } else if let Some(begin) = last_multi_offset(&self.input, &self.batch) {
            self.complete_bytes = self.offset + begin as u64;
        }
        self.input.drain(..done);
        self.offset += done as u64;
        Ok(more)
    }

    /// Creates the error for malformed bytes at index `index` of the input.
    fn format_error_at(&self, index: usize, reason: &str) -> ReplayError {
        ReplayError::Format { offset: self.offset + index as u64, reason: reason.to_owned() }
    }

    /// Finds the first of these requests that is unknown or has a wrong number of arguments, and its error.
    fn find_unknown_command(&self, requests: Range<usize>) -> Option<(usize, CommandError)> {
        let registry = self.loader.commands.registry();
        let fault = |number: usize| registry.check(self.batch.args(number, &self.input)).err();
        requests.into_iter().find_map(|number| Some((number, fault(number)?)))
    }

    fn run_batch(&mut self, session: &mut Session) -> Result<(), ReplayError> {
        let Loader { engine, commands, host, .. } = self.loader;
        let now = host.now();
        let (mut next, mut replies) = (0, Vec::new());
        while next < self.batch.len() {
            let (after, flow) = commands.dispatcher(engine).run(
                &mut self.worker,
                session,
                now,
                PipelinedRequests { buffer: &self.input, batch: &self.batch, first_pending: next },
                &mut replies,
            );
            if let Some(error) = first_error(&replies) {
                if let Some((index, error)) = self.find_unknown_command(next..after) {
                    let offset = self.offset + self.batch.consumed_bytes(index) as u64;
                    return Err(ReplayError::Command { offset, error: error.to_string() });
                }
                host.report_event(LoadEvent::CommandFailed(&error));
            }
            replies.clear();
            if matches!(flow, DispatchStatus::Node(_)) {
                host.on_unexecuted_command(self.batch.args(after, &self.input));
            }
            // The engine does not execute commands such as PING and REPLCONF. They change no data.
            next = if matches!(flow, DispatchStatus::Node(_) | DispatchStatus::Paused) {
                after + 1
            } else {
                after
            };
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
