//! RESP, the Redis serialization protocol, versions 2 and 3.
//!
//! [`Parser`] parses requests in a read buffer without copying, [`Writer`] appends replies in the client's
//! protocol version, [`Value`] is a parsed reply for code that acts as a client (replication, sentinel,
//! tests), and [`ByteQueue`] holds pending output. Nothing here does I/O.
//!
//! Source: the protocol specification on redis.io ("RESP protocol spec"); error texts and limits are those of
//! Redis.
#![forbid(unsafe_code)]

mod double;
mod grisu;
mod number;
mod queue;
mod request;
mod value;
mod writer;

/// The Redis version that is reported to clients and tools and written to files. Its commands and formats are
/// supported.
pub const REDIS_VERSION: &str = "7.4.0";

pub use double::{Double, ShortestDouble, parse_double, parse_strtod};
pub use number::parse_i64;
pub use queue::{ByteQueue, SharedBytes, charged_bytes};
pub use request::{
    Args, Batch, ParseLimits, ParseProgress, Parser, ProtocolError, Request, encode_request, split_words,
    split_words_bytes,
};
pub use value::{Value, ValueError, parse_value};
pub use writer::{Protocol, Writer};
