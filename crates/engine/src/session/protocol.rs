//! How the server replies to a client: protocol version, reply suppression, push messages, and announced modes.

use std::sync::atomic::Ordering;

use resp::Protocol;

use super::Session;
use crate::clients::ClientFlags;

/// Which replies are suppressed (CLIENT REPLY).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplySuppression {
    /// No reply is suppressed.
    #[default]
    None,
    /// The reply of the next command is suppressed.
    Next,
    /// The reply of the running command is suppressed.
    Current,
    /// All replies are suppressed.
    All,
}

/// What is pushed to the client besides replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PushMode {
    /// Only replies are sent.
    #[default]
    None,
    /// Messages of subscriptions, invalidations by prefix, or MONITOR's lines.
    Messages,
    /// Messages, and invalidations of the keys that the client reads.
    MessagesAndReadKeys,
}

impl PushMode {
    pub(super) fn with_messages(self) -> Self {
        match self {
            Self::None => Self::Messages,
            Self::Messages | Self::MessagesAndReadKeys => self,
        }
    }

    pub(super) fn with_read_keys(self, enabled: bool) -> Self {
        match (self, enabled) {
            (_, true) => Self::MessagesAndReadKeys,
            (Self::None, false) => Self::None,
            (Self::Messages | Self::MessagesAndReadKeys, false) => Self::Messages,
        }
    }
}

/// How the server replies to the client.
#[derive(Debug, Default)]
pub(super) struct ProtocolSettings {
    /// The protocol version negotiated by HELLO.
    pub(super) version: Protocol,
    pub(super) suppression: ReplySuppression,
    pub(super) pushes: PushMode,
    /// Set by READONLY: the client accepts reads from a replica.
    pub(super) is_readonly: bool,
    /// Set by CLIENT CAPA REDIRECT.
    supports_redirect: bool,
    /// Set by CLIENT IMPORT-SOURCE: the client sees expired keys.
    is_import_source: bool,
}

impl Session {
    /// Returns the protocol version.
    #[must_use]
    #[inline(always)]
    pub fn protocol(&self) -> Protocol {
        self.protocol.version
    }

    /// Sets the protocol version (HELLO).
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol.version = protocol;
        self.client().set_protocol(protocol);
    }

    /// Sets the protocol version of a session in which another client's command runs, without publishing it.
    pub(crate) fn adopt_protocol(&mut self, protocol: Protocol) {
        self.protocol.version = protocol;
    }

    /// Returns which replies are suppressed. The engine drops replies that it writes; other writers of replies must do
    /// the same.
    #[must_use]
    #[inline]
    pub fn reply_suppression(&self) -> ReplySuppression {
        self.protocol.suppression
    }

    /// Sets which replies are suppressed (CLIENT REPLY).
    pub fn set_reply_suppression(&mut self, suppression: ReplySuppression) {
        self.protocol.suppression = suppression;
    }

    /// Starts a command: turns a suppression of the next reply into one of the running command's reply.
    pub fn begin_suppression(&mut self) {
        if self.protocol.suppression == ReplySuppression::Next {
            self.protocol.suppression = ReplySuppression::Current;
        }
    }

    /// Ends a command: if only its own reply was suppressed, later replies are sent again.
    pub fn end_suppression(&mut self) {
        if self.protocol.suppression == ReplySuppression::Current {
            self.protocol.suppression = ReplySuppression::None;
        }
    }

    /// Returns whether the running command's reply is suppressed.
    #[must_use]
    pub fn is_reply_suppressed(&self) -> bool {
        matches!(self.protocol.suppression, ReplySuppression::Current | ReplySuppression::All)
    }

    /// Returns whether the client accepts reads from a replica (READONLY).
    pub(crate) fn is_readonly(&self) -> bool {
        self.protocol.is_readonly
    }

    /// Sets the READONLY mode.
    pub fn set_readonly(&mut self, readonly: bool) {
        self.protocol.is_readonly = readonly;
        self.client().set_flag(ClientFlags::READONLY, readonly);
    }

    /// Returns whether the client follows redirections to the master.
    pub(crate) fn supports_redirect(&self) -> bool {
        self.protocol.supports_redirect
    }

    /// Sets whether the client follows redirections to the master (CLIENT CAPA REDIRECT).
    pub fn set_supports_redirect(&mut self, enabled: bool) {
        self.protocol.supports_redirect = enabled;
        self.client().supports_redirect.store(enabled, Ordering::Relaxed);
    }

    /// Returns whether the client imports data from another server and sees expired keys.
    #[inline]
    pub(crate) fn is_import_source(&self) -> bool {
        self.protocol.is_import_source
    }

    /// Sets whether the client imports data and sees expired keys (CLIENT IMPORT-SOURCE).
    pub fn set_import_source(&mut self, enabled: bool) {
        self.protocol.is_import_source = enabled;
        self.client().set_flag(ClientFlags::IMPORT_SOURCE, enabled);
    }
}
