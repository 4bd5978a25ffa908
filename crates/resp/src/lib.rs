//! RESP, the Redis serialization protocol, versions 2 and 3.
//!
//! Three directions: [`Parser`] cuts requests out of a read buffer without copying, [`Writer`] appends
//! replies to a write buffer in the client's protocol version, and [`Value`] is a whole reply as a
//! value, for code that is a client (replication, sentinel, tests). [`ByteQueue`] keeps what waits to be sent. Nothing
//! here does I/O.
//!
//! Source: the protocol specification on redis.io ("RESP protocol spec"); error texts and limits as
//! Redis gives them.
#![forbid(unsafe_code)]

mod double;
mod grisu;
mod number;
mod queue;
mod request;
mod value;
mod writer;

/// The version that clients, tools and files are told: the commands and formats are those of this Redis.
pub const REDIS_VERSION: &str = "7.4.0";

pub use double::{Double, Shortest, parse_double, parse_strtod};
pub use number::parse_i64;
pub use queue::{ByteQueue, SharedBytes, charged};
pub use request::{
    Args, Batch, Limits, Parsed, Parser, ProtocolError, Request, encode_request, split_bytes, split_words,
};
pub use value::{Value, ValueError, parse_value};
pub use writer::{Protocol, Writer};
