//! Full synchronisation over two connections, as in Valkey 8 and later: the master answers PSYNC with
//! `+DUALCHANNELSYNC`, sends the snapshot over a second connection (the RDB channel) and concurrently the stream over
//! the first (the main channel). [`crate::master`] lists the steps.
//!
//! Stream bytes are buffered until the snapshot is loaded. When the buffer is full, the replica stops reading from the
//! main channel and the master buffers the rest. If either connection breaks before the snapshot is complete, both are
//! closed and the synchronisation starts again.

use slot_routing::ReplOffset;

use super::lines::LineSplitter;
use super::link::{
    ANNOUNCED_VALKEY_VERSION, ContinueReply, append_auth, malformed_reply, parse_continue, refusal_error,
};
use super::stream_buffer::StreamBuffer;
use super::transfer::IncomingTransfer;
use super::{LinkError, RdbChannelAction, ReplicaAction, ReplicaConfig};
use crate::id::ReplId;
use crate::log::ReplPosition;

/// The progress of the handshake and the snapshot on the RDB channel.
#[derive(Debug)]
enum RdbChannelState {
    Connecting,
    /// The replica waits for the replies to this many requests before it sends SYNC.
    Handshake {
        missing_replies: u8,
    },
    /// The replica waits for `$ENDOFF`.
    AwaitsEndOffset,
    TransferringSnapshot(IncomingTransfer),
    Complete,
}

/// The progress of the handshake on the main channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MainChannelState {
    /// The main channel is idle until the position of the snapshot is known.
    Waiting,
    /// The replica has told the master over the main channel which RDB channel belongs to it.
    Identifying,
    /// The replica has sent PSYNC over the main channel.
    AwaitsPsyncReply,
    Streaming,
}

/// State of both connections during one synchronisation.
#[derive(Debug)]
pub(super) struct DualChannelSync {
    rdb_channel: RdbChannelState,
    main_channel: MainChannelState,
    rdb_lines: LineSplitter,
    main_lines: LineSplitter,
    /// The position of the snapshot; `None` until `$ENDOFF` has arrived.
    position: Option<ReplPosition>,
    stream_buffer: StreamBuffer,
}

impl DualChannelSync {
    pub(super) fn start(out: &mut Vec<ReplicaAction>) -> Self {
        out.push(ReplicaAction::RdbChannel(RdbChannelAction::Connect));
        Self {
            rdb_channel: RdbChannelState::Connecting,
            main_channel: MainChannelState::Waiting,
            rdb_lines: LineSplitter::default(),
            main_lines: LineSplitter::default(),
            position: None,
            stream_buffer: StreamBuffer::default(),
        }
    }

    /// Returns the snapshot that is being received.
    pub(super) fn transfer_progress(&self) -> Option<&IncomingTransfer> {
        if let RdbChannelState::TransferringSnapshot(transfer) = &self.rdb_channel {
            Some(transfer)
        } else {
            None
        }
    }

    pub(super) fn has_snapshot_started(&self) -> bool {
        self.position.is_some()
    }

    pub(super) fn buffered_bytes(&self) -> u64 {
        self.stream_buffer.buffered_bytes()
    }

    /// Returns the position of the snapshot and the buffered stream once the snapshot is complete and the stream has
    /// started.
    pub(super) fn take_completed_sync(&mut self) -> Option<(ReplPosition, StreamBuffer)> {
        let whole = matches!(self.rdb_channel, RdbChannelState::Complete)
            && self.main_channel == MainChannelState::Streaming;
        Some((self.position.filter(|_| whole)?, std::mem::take(&mut self.stream_buffer)))
    }

    /// Sends the handshake over the RDB channel.
    pub(super) fn on_rdb_connected(&mut self, config: &ReplicaConfig, out: &mut Vec<ReplicaAction>) {
        let mut hello = Vec::new();
        let auth = append_auth(config, &mut hello);
        let port = config.listening_port.to_string();
        let words =
            [&b"REPLCONF"[..], b"capa", b"eof", b"rdb-only", b"1", b"rdb-channel", b"1", b"listening-port"];
        let mut words = words.to_vec();
        words.extend([port.as_bytes(), b"version", ANNOUNCED_VALKEY_VERSION]);
        if let Some(address) = &config.announce_ip {
            words.extend([&b"ip-address"[..], address.as_bytes()]);
        }
        resp::encode_request(&mut hello, words);
        self.rdb_channel = RdbChannelState::Handshake { missing_replies: 1 + u8::from(auth) };
        out.push(ReplicaAction::RdbChannel(RdbChannelAction::Send(hello)));
    }

    /// Returns whether the RDB channel is still needed because the snapshot is incomplete.
    pub(super) fn needs_rdb_channel(&self) -> bool {
        !matches!(self.rdb_channel, RdbChannelState::Complete)
    }

    /// Handles bytes received over the RDB channel.
    pub(super) fn on_rdb_received(
        &mut self,
        bytes: Vec<u8>,
        out: &mut Vec<ReplicaAction>,
    ) -> Result<(), LinkError> {
        let rest = match &self.rdb_channel {
            // Drop late data of a closed connection.
            RdbChannelState::Connecting | RdbChannelState::Complete => return Ok(()),
            RdbChannelState::Handshake { .. } | RdbChannelState::AwaitsEndOffset => {
                match self.on_rdb_lines(&bytes, out)? {
                    Some(rest) => rest,
                    None => return Ok(()),
                }
            }
            RdbChannelState::TransferringSnapshot(_) => bytes,
        };
        let RdbChannelState::TransferringSnapshot(transfer) = &mut self.rdb_channel else { return Ok(()) };
        if transfer.advance(rest, out)?.is_some() {
            self.rdb_channel = RdbChannelState::Complete;
            out.push(ReplicaAction::RdbChannel(RdbChannelAction::Close));
        }
        Ok(())
    }

    /// Handles the reply lines that precede the snapshot. Returns the bytes that belong to the snapshot.
    fn on_rdb_lines(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<ReplicaAction>,
    ) -> Result<Option<Vec<u8>>, LinkError> {
        while let Some(line) = self.rdb_lines.next_line(&mut bytes)? {
            match self.rdb_channel {
                RdbChannelState::Handshake { missing_replies: missing } if line.first() == Some(&b'+') => {
                    self.rdb_channel = if missing > 1 {
                        RdbChannelState::Handshake { missing_replies: missing - 1 }
                    } else {
                        RdbChannelState::AwaitsEndOffset
                    };
                    if missing == 1 {
                        let mut sync = Vec::new();
                        resp::encode_request(&mut sync, [&b"SYNC"[..]]);
                        out.push(ReplicaAction::RdbChannel(RdbChannelAction::Send(sync)));
                    }
                }
                RdbChannelState::AwaitsEndOffset if line.starts_with(b"$ENDOFF:") => {
                    let (position, client) = parse_end_offset(&line).ok_or_else(|| malformed_reply(&line))?;
                    self.position = Some(position);
                    self.rdb_channel = RdbChannelState::TransferringSnapshot(IncomingTransfer::new(position));
                    self.main_channel = MainChannelState::Identifying;
                    let mut link = Vec::new();
                    resp::encode_request(&mut link, [&b"REPLCONF"[..], b"set-rdb-client-id", client]);
                    out.push(ReplicaAction::Send(link));
                    return Ok(Some(bytes.to_vec()));
                }
                _ => return Err(refusal_error(&line)),
            }
        }
        Ok(None)
    }

    /// Handles bytes received over the main channel.
    pub(super) fn on_main_received(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<ReplicaAction>,
    ) -> Result<(), LinkError> {
        let mut bytes = bytes;
        while self.main_channel != MainChannelState::Streaming {
            let Some(line) = self.main_lines.next_line(&mut bytes)? else { return Ok(()) };
            let Some(position) = &mut self.position else { return Err(refusal_error(&line)) };
            match self.main_channel {
                MainChannelState::Identifying if line.first() == Some(&b'+') => {
                    self.main_channel = MainChannelState::AwaitsPsyncReply;
                    let mut ask = Vec::new();
                    let first_byte = (position.offset.0 + 1).to_string();
                    let words = [&b"PSYNC"[..], position.id.as_str().as_bytes(), first_byte.as_bytes()];
                    resp::encode_request(&mut ask, words);
                    out.push(ReplicaAction::Send(ask));
                }
                MainChannelState::AwaitsPsyncReply => match parse_continue(&line) {
                    ContinueReply::Accepted { id, .. } => {
                        position.id = id.unwrap_or(position.id);
                        self.main_channel = MainChannelState::Streaming;
                    }
                    ContinueReply::Malformed => return Err(malformed_reply(&line)),
                    ContinueReply::FullResyncNeeded => return Err(refusal_error(&line)),
                },
                MainChannelState::Waiting | MainChannelState::Identifying | MainChannelState::Streaming => {
                    return Err(refusal_error(&line));
                }
            }
        }
        self.stream_buffer.push(bytes);
        Ok(())
    }
}

/// Parses `$ENDOFF:offset id db client`: the position of the snapshot and the client id of the RDB channel. The
/// database is ignored, because the snapshot contains it as well.
fn parse_end_offset(line: &[u8]) -> Option<(ReplPosition, &[u8])> {
    let mut words = line.strip_prefix(b"$ENDOFF:")?.split(|byte| *byte == b' ');
    let offset = u64::try_from(resp::parse_i64(words.next()?)?).ok()?;
    let id = ReplId::parse(words.next()?).ok()?;
    let (_db, client) = (words.next()?, words.next()?);
    u64::try_from(resp::parse_i64(client)?).ok()?;
    words.next().is_none().then_some((ReplPosition { id, offset: ReplOffset(offset) }, client))
}
