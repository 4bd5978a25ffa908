//! Full synchronisation over two connections, as in Valkey 8 and later: the master answers PSYNC with
//! `+DUALCHANNELSYNC`, sends the snapshot over a second connection (the RDB channel) and concurrently the stream over
//! the first (the main channel). [`crate::master`] lists the steps.
//!
//! Stream bytes are buffered until the snapshot is loaded. When the buffer is full, the main channel is no longer read
//! and the master buffers the rest. If either connection breaks before the snapshot is complete, both are closed and
//! the synchronisation starts again.

use slot_routing::ReplOffset;

use super::lines::Lines;
use super::link::{ANNOUNCED_VALKEY_VERSION, Resumed, authenticate, nonsense, refused, resumed};
use super::stream_buffer::StreamBuffer;
use super::transfer::Transfer;
use super::{LinkError, RdbChannelAction, ReplicaAction, ReplicaConfig};
use crate::id::ReplId;
use crate::log::Position;

/// State of the RDB channel.
#[derive(Debug)]
enum Rdb {
    Connecting,
    /// Waits for replies to this many requests, then sends SYNC.
    Introducing {
        missing: u8,
    },
    /// Waits for `$ENDOFF`.
    Asked,
    Transfer(Transfer),
    Whole,
}

/// State of the main channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Main {
    /// Waits for the position of the snapshot.
    Waiting,
    /// Has announced which RDB channel it belongs to.
    Linking,
    /// Has sent PSYNC.
    Asking,
    Streaming,
}

/// State of both connections.
#[derive(Debug)]
pub(super) struct Dual {
    rdb: Rdb,
    main: Main,
    rdb_lines: Lines,
    main_lines: Lines,
    /// The position of the snapshot, once known.
    position: Option<Position>,
    held: StreamBuffer,
}

impl Dual {
    pub(super) fn start(out: &mut Vec<ReplicaAction>) -> Self {
        out.push(ReplicaAction::RdbChannel(RdbChannelAction::Connect));
        Self {
            rdb: Rdb::Connecting,
            main: Main::Waiting,
            rdb_lines: Lines::default(),
            main_lines: Lines::default(),
            position: None,
            held: StreamBuffer::default(),
        }
    }

    /// Returns the snapshot that is being received.
    pub(super) fn transfer(&self) -> Option<&Transfer> {
        if let Rdb::Transfer(transfer) = &self.rdb { Some(transfer) } else { None }
    }

    /// Returns whether the snapshot has started to arrive.
    pub(super) fn has_begun(&self) -> bool {
        self.position.is_some()
    }

    pub(super) fn held(&self) -> u64 {
        self.held.bytes()
    }

    /// Returns the position of the snapshot and the buffered stream once the snapshot is complete and the stream has
    /// started.
    pub(super) fn whole(&mut self) -> Option<(Position, StreamBuffer)> {
        let whole = matches!(self.rdb, Rdb::Whole) && self.main == Main::Streaming;
        Some((self.position.filter(|_| whole)?, std::mem::take(&mut self.held)))
    }

    /// Sends the handshake over the RDB channel.
    pub(super) fn on_rdb_connected(&mut self, config: &ReplicaConfig, out: &mut Vec<ReplicaAction>) {
        let mut hello = Vec::new();
        let auth = authenticate(config, &mut hello);
        let port = config.listening_port.to_string();
        let words =
            [&b"REPLCONF"[..], b"capa", b"eof", b"rdb-only", b"1", b"rdb-channel", b"1", b"listening-port"];
        let mut words = words.to_vec();
        words.extend([port.as_bytes(), b"version", ANNOUNCED_VALKEY_VERSION]);
        if let Some(address) = &config.announce_ip {
            words.extend([&b"ip-address"[..], address.as_bytes()]);
        }
        resp::encode_request(&mut hello, words);
        self.rdb = Rdb::Introducing { missing: 1 + u8::from(auth) };
        out.push(ReplicaAction::RdbChannel(RdbChannelAction::Send(hello)));
    }

    /// Returns whether the RDB channel is still needed.
    pub(super) fn needs_rdb(&self) -> bool {
        !matches!(self.rdb, Rdb::Whole)
    }

    /// Handles bytes of the RDB channel.
    pub(super) fn on_rdb_received(
        &mut self,
        bytes: Vec<u8>,
        out: &mut Vec<ReplicaAction>,
    ) -> Result<(), LinkError> {
        let rest = match &self.rdb {
            // Data of a closed connection is dropped.
            Rdb::Connecting | Rdb::Whole => return Ok(()),
            Rdb::Introducing { .. } | Rdb::Asked => match self.on_rdb_lines(&bytes, out)? {
                Some(rest) => rest,
                None => return Ok(()),
            },
            Rdb::Transfer(_) => bytes,
        };
        let Rdb::Transfer(transfer) = &mut self.rdb else { return Ok(()) };
        if transfer.advance(rest, out)?.is_some() {
            self.rdb = Rdb::Whole;
            out.push(ReplicaAction::RdbChannel(RdbChannelAction::Close));
        }
        Ok(())
    }

    /// Handles the reply lines before the snapshot; returns the bytes that belong to the snapshot.
    fn on_rdb_lines(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<ReplicaAction>,
    ) -> Result<Option<Vec<u8>>, LinkError> {
        while let Some(line) = self.rdb_lines.next(&mut bytes)? {
            match self.rdb {
                Rdb::Introducing { missing } if line.first() == Some(&b'+') => {
                    self.rdb =
                        if missing > 1 { Rdb::Introducing { missing: missing - 1 } } else { Rdb::Asked };
                    if missing == 1 {
                        let mut sync = Vec::new();
                        resp::encode_request(&mut sync, [&b"SYNC"[..]]);
                        out.push(ReplicaAction::RdbChannel(RdbChannelAction::Send(sync)));
                    }
                }
                Rdb::Asked if line.starts_with(b"$ENDOFF:") => {
                    let (position, client) = end_offset(&line).ok_or_else(|| nonsense(&line))?;
                    self.position = Some(position);
                    self.rdb = Rdb::Transfer(Transfer::new(position));
                    self.main = Main::Linking;
                    let mut link = Vec::new();
                    resp::encode_request(&mut link, [&b"REPLCONF"[..], b"set-rdb-client-id", client]);
                    out.push(ReplicaAction::Send(link));
                    return Ok(Some(bytes.to_vec()));
                }
                _ => return Err(refused(&line)),
            }
        }
        Ok(None)
    }

    /// Handles bytes of the main channel.
    pub(super) fn on_main_received(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<ReplicaAction>,
    ) -> Result<(), LinkError> {
        let mut bytes = bytes;
        while self.main != Main::Streaming {
            let Some(line) = self.main_lines.next(&mut bytes)? else { return Ok(()) };
            let Some(position) = &mut self.position else { return Err(refused(&line)) };
            match self.main {
                Main::Linking if line.first() == Some(&b'+') => {
                    self.main = Main::Asking;
                    let mut ask = Vec::new();
                    let first_byte = (position.offset.0 + 1).to_string();
                    let words = [&b"PSYNC"[..], position.id.as_str().as_bytes(), first_byte.as_bytes()];
                    resp::encode_request(&mut ask, words);
                    out.push(ReplicaAction::Send(ask));
                }
                Main::Asking => match resumed(&line) {
                    Resumed::Yes { id, .. } => {
                        position.id = id.unwrap_or(position.id);
                        self.main = Main::Streaming;
                    }
                    Resumed::Nonsense => return Err(nonsense(&line)),
                    Resumed::No => return Err(refused(&line)),
                },
                Main::Waiting | Main::Linking | Main::Streaming => return Err(refused(&line)),
            }
        }
        self.held.push(bytes);
        Ok(())
    }
}

/// Parses `$ENDOFF:offset id db client`: the position of the snapshot and the client id of the RDB channel. The
/// database is ignored, since the snapshot contains it too.
fn end_offset(line: &[u8]) -> Option<(Position, &[u8])> {
    let mut words = line.strip_prefix(b"$ENDOFF:")?.split(|byte| *byte == b' ');
    let offset = u64::try_from(resp::parse_i64(words.next()?)?).ok()?;
    let id = ReplId::parse(words.next()?).ok()?;
    let (_db, client) = (words.next()?, words.next()?);
    u64::try_from(resp::parse_i64(client)?).ok()?;
    words.next().is_none().then_some((Position { id, offset: ReplOffset(offset) }, client))
}
