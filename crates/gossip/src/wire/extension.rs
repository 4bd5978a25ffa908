//! The extensions after the gossip entries of a PING, PONG or MEET.
//!
//! ```text
//! length u32 (includes this header, multiple of 8) | type u16 | unused u16 | payload, zero-padded
//! ```
//!
//! Strings are NUL-terminated. Unknown types are skipped, so newer versions can add types.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use slot_routing::NodeId;

use super::decode::{DecodeError, read_u16, read_u32, read_u64};
use super::{ID_BYTES, encode::put_id};

const HEADER_BYTES: usize = 8;
const HOSTNAME_TYPE: u16 = 0;
const HUMAN_NAME_TYPE: u16 = 1;
const FORGOTTEN_NODE_TYPE: u16 = 2;
const SHARD_TYPE: u16 = 3;
const CLIENT_IPV4_TYPE: u16 = 4;
const CLIENT_IPV6_TYPE: u16 = 5;
const CLIENT_PORT_TYPE: u16 = 6;
const CLIENT_TLS_PORT_TYPE: u16 = 7;
const ZONE_TYPE: u16 = 8;
/// Maximum length of a string in bytes, with its NUL. A DNS name has at most 253 characters; Redis allows 255 bytes
/// with the NUL.
const MAX_TEXT_BYTES: usize = 256;

/// Additional data about the sender of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extension {
    /// The hostname announced for clients; an empty one withdraws it.
    Hostname(String),
    /// The human-readable node name; an empty one withdraws it.
    HumanName(String),
    /// An operator forgot this node; receivers forget it as well.
    Forgotten {
        /// The id that receivers must forget.
        id: NodeId,
        /// How long receivers must not add the forgotten node again.
        ttl: Duration,
    },
    /// The shard id of the sender. A replica announces the shard id of its master.
    Shard(NodeId),
    /// The address for clients over IPv4, if it differs from the address for nodes.
    ClientIpv4(Ipv4Addr),
    /// The address for clients over IPv6, if it differs from the address for nodes.
    ClientIpv6(Ipv6Addr),
    /// The plaintext port for clients, if it differs from the port for nodes.
    ClientPort(u16),
    /// The TLS port for clients, if it differs from the port for nodes.
    ClientTlsPort(u16),
    /// The availability zone in which the sender runs.
    Zone(String),
}

/// Decodes `count` extensions, which must fill `bytes` exactly.
pub(super) fn decode_all(mut bytes: &[u8], count: u16) -> Result<Vec<Extension>, DecodeError> {
    let mut extensions = Vec::new();
    for _ in 0..count {
        let length = read_u32(bytes, 0).ok_or(DecodeError::LengthMismatch)? as usize;
        if length < HEADER_BYTES || !length.is_multiple_of(8) || length > bytes.len() {
            return Err(DecodeError::LengthMismatch);
        }
        let kind = read_u16(bytes, 4).ok_or(DecodeError::LengthMismatch)?;
        extensions.extend(decode_one(kind, &bytes[HEADER_BYTES..length])?);
        bytes = &bytes[length..];
    }
    if bytes.is_empty() { Ok(extensions) } else { Err(DecodeError::LengthMismatch) }
}

fn decode_one(kind: u16, payload: &[u8]) -> Result<Option<Extension>, DecodeError> {
    let id = |bytes: &[u8]| {
        let id = bytes.get(..ID_BYTES).ok_or(DecodeError::LengthMismatch)?;
        NodeId::from_bytes(id).map_err(|_| DecodeError::InvalidNodeId)
    };
    Ok(Some(match kind {
        HOSTNAME_TYPE => return Ok(parse_text(payload).map(Extension::Hostname)),
        HUMAN_NAME_TYPE => return Ok(parse_text(payload).map(Extension::HumanName)),
        FORGOTTEN_NODE_TYPE => {
            let ttl = read_u64(payload, ID_BYTES).ok_or(DecodeError::LengthMismatch)?;
            Extension::Forgotten { id: id(payload)?, ttl: Duration::from_secs(ttl) }
        }
        SHARD_TYPE => Extension::Shard(id(payload)?),
        CLIENT_IPV4_TYPE => return Ok(parse_value(payload).map(Extension::ClientIpv4)),
        CLIENT_IPV6_TYPE => return Ok(parse_value(payload).map(Extension::ClientIpv6)),
        CLIENT_PORT_TYPE => Extension::ClientPort(read_u16(payload, 0).ok_or(DecodeError::LengthMismatch)?),
        CLIENT_TLS_PORT_TYPE => {
            Extension::ClientTlsPort(read_u16(payload, 0).ok_or(DecodeError::LengthMismatch)?)
        }
        ZONE_TYPE => return Ok(parse_text(payload).map(Extension::Zone)),
        _ => return Ok(None),
    }))
}

/// Reads a NUL-terminated string. Strings with special characters are skipped like unknown extensions, because the
/// string will appear in replies and in `nodes.conf`.
fn parse_text(payload: &[u8]) -> Option<String> {
    let end = payload.iter().position(|&byte| byte == 0)?;
    let text = &payload[..end];
    let plain = text.iter().all(|&byte| byte.is_ascii_graphic() && !b",=\"'\\".contains(&byte));
    (end < MAX_TEXT_BYTES && plain).then(|| String::from_utf8_lossy(text).into_owned())
}

/// Parses a value such as an IP address. A malformed value is skipped like an unknown extension.
fn parse_value<T: FromStr>(payload: &[u8]) -> Option<T> {
    parse_text(payload)?.parse().ok()
}

impl Extension {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        match self {
            Self::Hostname(name) => put_text(out, HOSTNAME_TYPE, name),
            Self::HumanName(name) => put_text(out, HUMAN_NAME_TYPE, name),
            Self::Forgotten { id, ttl } => {
                out.extend(FORGOTTEN_NODE_TYPE.to_be_bytes());
                out.extend([0; 2]);
                put_id(out, *id);
                out.extend(ttl.as_secs().to_be_bytes());
            }
            Self::Shard(id) => {
                out.extend(SHARD_TYPE.to_be_bytes());
                out.extend([0; 2]);
                put_id(out, *id);
            }
            Self::ClientIpv4(ip) => put_text(out, CLIENT_IPV4_TYPE, &ip.to_string()),
            Self::ClientIpv6(ip) => put_text(out, CLIENT_IPV6_TYPE, &ip.to_string()),
            Self::ClientPort(port) => put_port(out, CLIENT_PORT_TYPE, *port),
            Self::ClientTlsPort(port) => put_port(out, CLIENT_TLS_PORT_TYPE, *port),
            Self::Zone(zone) => put_text(out, ZONE_TYPE, zone),
        }
        let length = (out.len() - start).next_multiple_of(8);
        out.resize(start + length, 0);
        out[start..start + 4].copy_from_slice(&(length as u32).to_be_bytes());
    }
}

fn put_port(out: &mut Vec<u8>, kind: u16, port: u16) {
    out.extend(kind.to_be_bytes());
    out.extend([0; 2]);
    out.extend(port.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, kind: u16, text: &str) {
    out.extend(kind.to_be_bytes());
    out.extend([0; 2]);
    out.extend(text.as_bytes());
    out.push(0);
}
