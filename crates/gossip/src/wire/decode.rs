//! Decodes packets. A packet is validated completely before it is processed.

use std::net::IpAddr;

use slot_routing::{Epoch, NodeId, ReplOffset, SlotSet};
use thiserror::Error;

use super::{
    BITMAP_BYTES, ConfigUpdate, GOSSIP_ENTRY_BYTES, GossipEntry, GossipSection, HEADER_BYTES, Header,
    ID_BYTES, IP_BYTES, MessageBody, MessageFlags, MessageKind, NodeFlags, PROTOCOL_VERSION, Packet,
    Publication, SIGNATURE, UPDATE_BYTES, extension, field_offset,
};

/// Maximum packet size, far above any realistic published message.
pub const MAX_PACKET_BYTES: usize = 64 << 20;

/// Epochs at or above this limit are rejected, so that incrementing an epoch cannot overflow.
pub(crate) const MAX_EPOCH: u64 = 1 << 62;

/// Why a packet is malformed. The receiver closes the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The packet does not start with the bus signature.
    #[error("bad signature")]
    WrongSignature,
    /// The protocol version is not 1.
    #[error("unsupported protocol version {0}")]
    UnsupportedVersion(u16),
    /// The length field does not match the content.
    #[error("length does not fit the message")]
    LengthMismatch,
    /// The length field exceeds [`MAX_PACKET_BYTES`].
    #[error("message of {0} bytes is too long")]
    PacketTooLong(usize),
    /// An epoch exceeds the limit that protects against overflow.
    #[error("epoch {0} is beyond any that a cluster can reach")]
    EpochTooHigh(u64),
    /// A node id does not consist of 40 hexadecimal characters.
    #[error("malformed node id")]
    InvalidNodeId,
}

/// Returns the length of the packet at the start of `bytes`, or `None` if `bytes` has fewer than eight bytes.
///
/// A reader buffers bytes until the packet is complete. Wrong signatures and lengths are reported at once, before
/// anything is buffered.
///
/// # Errors
/// Wrong signature, or a length out of bounds.
pub fn packet_len(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
    let seen = bytes.len().min(SIGNATURE.len());
    if bytes[..seen] != SIGNATURE[..seen] {
        return Err(DecodeError::WrongSignature);
    }
    let Some(length) = read_u32(bytes, field_offset::LENGTH_OFFSET) else { return Ok(None) };
    let length = length as usize;
    if length < HEADER_BYTES {
        return Err(DecodeError::LengthMismatch);
    }
    if length > MAX_PACKET_BYTES {
        return Err(DecodeError::PacketTooLong(length));
    }
    Ok(Some(length))
}

/// Decodes one complete packet.
///
/// # Errors
/// A field is malformed, or the length does not match.
pub fn decode(bytes: &[u8]) -> Result<Packet, DecodeError> {
    if packet_len(bytes)? != Some(bytes.len()) {
        return Err(DecodeError::LengthMismatch);
    }
    let (head, data) = bytes.split_at(HEADER_BYTES);
    let field = |place| read_u16(head, place).expect("inside the header");
    if field(field_offset::VERSION_OFFSET) != PROTOCOL_VERSION {
        return Err(DecodeError::UnsupportedVersion(field(field_offset::VERSION_OFFSET)));
    }
    let header = decode_header(head)?;
    let body = decode_body(field(field_offset::TYPE_OFFSET), head, data)?;
    Ok(Packet { header, body })
}

fn decode_header(head: &[u8]) -> Result<Header, DecodeError> {
    let short = |place| read_u16(head, place).expect("inside the header");
    let long = |place| read_u64(head, place).expect("inside the header");
    Ok(Header {
        sender: id_at(head, field_offset::SENDER_OFFSET)?,
        flags: NodeFlags(short(field_offset::FLAGS_OFFSET)),
        message_flags: MessageFlags(head[field_offset::MESSAGE_FLAGS_OFFSET]),
        is_serving: head[field_offset::STATE_OFFSET] == 0,
        ip: ip_at(head, field_offset::IP_OFFSET),
        port: short(field_offset::PORT_OFFSET),
        secondary_port: short(field_offset::SECONDARY_PORT_OFFSET),
        bus_port: short(field_offset::BUS_PORT_OFFSET),
        current_epoch: check_epoch(long(field_offset::CURRENT_EPOCH_OFFSET))?,
        config_epoch: check_epoch(long(field_offset::CONFIG_EPOCH_OFFSET))?,
        offset: ReplOffset(long(field_offset::REPL_OFFSET_OFFSET)),
        slots: bitmap_at(head, field_offset::SLOTS_OFFSET),
        replica_of: optional_id_at(head, field_offset::REPLICA_OF_OFFSET)?,
    })
}

fn decode_body(type_number: u16, head: &[u8], data: &[u8]) -> Result<MessageBody, DecodeError> {
    let exactly = |bytes| if data.len() == bytes { Ok(()) } else { Err(DecodeError::LengthMismatch) };
    Ok(match MessageKind::ALL.get(usize::from(type_number)) {
        Some(MessageKind::Ping) => MessageBody::Ping(decode_gossip(head, data)?),
        Some(MessageKind::Pong) => MessageBody::Pong(decode_gossip(head, data)?),
        Some(MessageKind::Meet) => MessageBody::Meet(decode_gossip(head, data)?),
        Some(MessageKind::Fail) => {
            exactly(ID_BYTES)?;
            MessageBody::Fail(id_at(data, 0)?)
        }
        Some(MessageKind::Publish) => MessageBody::Publish(decode_publication(data, false)?),
        Some(MessageKind::PublishShard) => MessageBody::Publish(decode_publication(data, true)?),
        Some(MessageKind::AuthRequest) => exactly(0).map(|()| MessageBody::AuthRequest)?,
        Some(MessageKind::AuthAck) => exactly(0).map(|()| MessageBody::AuthAck)?,
        Some(MessageKind::ManualFailoverStart) => exactly(0).map(|()| MessageBody::ManualFailoverStart)?,
        Some(MessageKind::Update) => {
            exactly(UPDATE_BYTES)?;
            let config_epoch = check_epoch(read_u64(data, 0).expect("the length was checked"))?;
            MessageBody::Update(ConfigUpdate {
                config_epoch,
                id: id_at(data, 8)?,
                slots: bitmap_at(data, 8 + ID_BYTES),
            })
        }
        Some(MessageKind::Module) | None => MessageBody::Unsupported(type_number),
    })
}

fn decode_gossip(head: &[u8], data: &[u8]) -> Result<GossipSection, DecodeError> {
    let count = usize::from(read_u16(head, field_offset::ENTRY_COUNT_OFFSET).expect("inside the header"));
    let entries_end = count * GOSSIP_ENTRY_BYTES;
    if data.len() < entries_end {
        return Err(DecodeError::LengthMismatch);
    }
    let (entries, rest) = data.split_at(entries_end);
    let entries = entries.chunks_exact(GOSSIP_ENTRY_BYTES).map(decode_entry).collect::<Result<_, _>>()?;
    let follow = MessageFlags(head[field_offset::MESSAGE_FLAGS_OFFSET]).contains(MessageFlags::EXTENSIONS);
    let count = if follow {
        read_u16(head, field_offset::EXTENSION_COUNT_OFFSET).expect("inside the header")
    } else {
        0
    };
    Ok(GossipSection { entries, extensions: extension::decode_all(rest, count)? })
}

fn decode_entry(bytes: &[u8]) -> Result<GossipEntry, DecodeError> {
    let short = |place| read_u16(bytes, place).expect("inside the entry");
    let int = |place| read_u32(bytes, place).expect("inside the entry");
    Ok(GossipEntry {
        id: id_at(bytes, 0)?,
        ping_sent: int(40),
        pong_received: int(44),
        ip: ip_at(bytes, 48),
        port: short(94),
        bus_port: short(96),
        flags: NodeFlags(short(98)),
        secondary_port: short(100),
    })
}

fn decode_publication(data: &[u8], is_sharded: bool) -> Result<Publication, DecodeError> {
    let (Some(channel), Some(message)) = (read_u32(data, 0), read_u32(data, 4)) else {
        return Err(DecodeError::LengthMismatch);
    };
    let text = &data[8..];
    if u64::from(channel) + u64::from(message) != text.len() as u64 {
        return Err(DecodeError::LengthMismatch);
    }
    let (channel, message) = text.split_at(channel as usize);
    Ok(Publication { is_sharded, channel: channel.to_vec(), message: message.to_vec() })
}

fn check_epoch(number: u64) -> Result<Epoch, DecodeError> {
    if number < MAX_EPOCH { Ok(Epoch(number)) } else { Err(DecodeError::EpochTooHigh(number)) }
}

fn id_at(bytes: &[u8], offset: usize) -> Result<NodeId, DecodeError> {
    NodeId::from_bytes(&bytes[offset..offset + ID_BYTES]).map_err(|_| DecodeError::InvalidNodeId)
}

fn optional_id_at(bytes: &[u8], offset: usize) -> Result<Option<NodeId>, DecodeError> {
    if bytes[offset..offset + ID_BYTES].iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    id_at(bytes, offset).map(Some)
}

/// Parses an IP address. A malformed address is treated like an empty field: the receiver uses the address of the
/// socket.
fn ip_at(bytes: &[u8], offset: usize) -> Option<IpAddr> {
    let field = &bytes[offset..offset + IP_BYTES];
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(IP_BYTES);
    std::str::from_utf8(&field[..end]).ok()?.parse().ok()
}

fn bitmap_at(bytes: &[u8], offset: usize) -> SlotSet {
    let bitmap = bytes[offset..offset + BITMAP_BYTES].try_into().expect("a slice of that length");
    SlotSet::from_bitmap(bitmap)
}

pub(super) fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

pub(super) fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

pub(super) fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}
