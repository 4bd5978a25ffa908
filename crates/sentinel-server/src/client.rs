//! The state of one client connection.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::{ReplySuppression, Session};
use resp::Writer;

use super::connection::{AcceptedClient, ClientOutput};

/// Maximum number of request bytes deferred during a pause. A client that sends more is disconnected.
const MAX_DEFERRED_BYTES: usize = 32 * 1024 * 1024;

pub(super) struct Client {
    pub(super) output: ClientOutput,
    /// The client's session, which the CLIENT commands show and change.
    pub(super) session: Session,
    is_authenticated: Arc<AtomicBool>,
    pub(super) channels: BTreeSet<Vec<u8>>,
    pub(super) patterns: BTreeSet<Vec<u8>>,
    /// Requests that wait for the end of a pause.
    deferred: VecDeque<Vec<Vec<u8>>>,
    deferred_bytes: usize,
}

impl Client {
    pub(super) fn new(accepted: AcceptedClient, session: Session) -> Self {
        Self {
            output: accepted.output,
            session,
            is_authenticated: accepted.is_authenticated,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            deferred: VecDeque::new(),
            deferred_bytes: 0,
        }
    }

    /// Tells the task that reads from the client whether the client has authenticated, since that changes its limits.
    pub(super) fn mark_authenticated(&self) {
        if self.session.is_authenticated() {
            self.is_authenticated.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Delivers a published message once per matching subscription. Like [`ClientOutput::push`], returns false if the
    /// client reads too slowly.
    pub(super) fn deliver(&self, channel: &str, payload: &str) -> bool {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, self.session.protocol());
        if self.channels.contains(channel.as_bytes()) {
            writer.push(3);
            writer.bulk(b"message");
            writer.bulk(channel.as_bytes());
            writer.bulk(payload.as_bytes());
        }
        for pattern in &self.patterns {
            if glob::matches(pattern, channel.as_bytes()) {
                writer.push(4);
                writer.bulk(b"pmessage");
                writer.bulk(pattern);
                writer.bulk(channel.as_bytes());
                writer.bulk(payload.as_bytes());
            }
        }
        bytes.is_empty() || self.output.push(bytes)
    }

    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Stores a request until the pause ends. Returns false if the client has exceeded its limit.
    pub(super) fn defer(&mut self, args: Vec<Vec<u8>>) -> bool {
        self.deferred_bytes += args.iter().map(|arg| arg.len() + size_of::<Vec<u8>>()).sum::<usize>();
        self.deferred.push_back(args);
        self.deferred_bytes <= MAX_DEFERRED_BYTES
    }

    /// Takes the deferred requests in order.
    pub(super) fn take_deferred(&mut self) -> VecDeque<Vec<Vec<u8>>> {
        self.deferred_bytes = 0;
        std::mem::take(&mut self.deferred)
    }

    /// Starts a request. Returns whether its reply is suppressed (CLIENT REPLY).
    pub(super) fn begin_muted(&mut self) -> bool {
        self.session.begin_suppression();
        self.session.is_reply_suppressed()
    }

    /// Reverts [`Client::begin_muted`], because the engine counts the same request itself.
    pub(super) fn unmute(&mut self) {
        if self.session.reply_suppression() == ReplySuppression::Current {
            self.session.set_reply_suppression(ReplySuppression::Next);
        }
    }

    /// Ends the request for CLIENT REPLY.
    pub(super) fn end_muted(&mut self) {
        self.session.end_suppression();
    }
}
