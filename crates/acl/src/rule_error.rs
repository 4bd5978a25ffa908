//! Why an ACL rule is rejected, with the error texts of Redis.

/// The reason why an ACL rule was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The rule is malformed.
    #[error("Syntax error")]
    Syntax,
    /// The rule names an unknown command or category.
    #[error("Unknown command or category name in ACL")]
    UnknownName,
    /// The rule permits a first argument of a subcommand, which is not supported.
    #[error("Allowing first-arg of a subcommand is not supported")]
    FirstArgumentOfSubcommand,
    /// The rule adds a key pattern although all keys are permitted.
    #[error(
        "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
         effect. Try 'resetkeys' to start with an empty list of patterns"
    )]
    KeyPatternAfterAllKeys,
    /// The rule adds a channel pattern although all channels are permitted.
    #[error(
        "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
         effect. Try 'resetchannels' to start with an empty list of channels"
    )]
    ChannelPatternAfterAllChannels,
    /// The rule removes a password that the user does not have.
    #[error("The password you are trying to remove from the user does not exist")]
    NoSuchPassword,
    /// The rule contains a malformed password hash.
    #[error(
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
    )]
    InvalidPasswordHash,
    /// The rule names a database number that is out of range.
    #[error("The provided database ID is out of range")]
    DatabaseOutOfRange,
}
