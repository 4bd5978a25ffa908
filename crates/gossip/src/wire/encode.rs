//! Encodes packets to the layout that [`crate::wire`] describes.

use std::io::Write;
use std::net::IpAddr;

use slot_routing::NodeId;

use super::{
    GOSSIP_ENTRY_BYTES, GossipEntry, GossipSection, HEADER_BYTES, Header, IP_BYTES, MessageBody,
    MessageFlags, PROTOCOL_VERSION, Packet, Publication, SIGNATURE, field_offset,
};

impl Packet {
    /// Returns the packet in wire format: the header followed by the data of its message type.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        self.header.write(&mut out);
        match &self.body {
            MessageBody::Ping(gossip) | MessageBody::Pong(gossip) | MessageBody::Meet(gossip) => {
                gossip.append(&mut out);
            }
            MessageBody::Fail(id) => put_id(&mut out, *id),
            MessageBody::Publish(publication) => publication.append(&mut out),
            MessageBody::Update(update) => {
                out.extend(update.config_epoch.0.to_be_bytes());
                put_id(&mut out, update.id);
                out.extend(update.slots.as_bitmap());
            }
            MessageBody::AuthRequest
            | MessageBody::AuthAck
            | MessageBody::ManualFailoverStart
            | MessageBody::Unsupported(_) => {}
        }
        put_u16(&mut out, field_offset::TYPE_OFFSET, self.body.type_number());
        let length = u32::try_from(out.len()).expect("a packet is far below 4 GiB");
        out[field_offset::LENGTH_OFFSET..field_offset::LENGTH_OFFSET + 4]
            .copy_from_slice(&length.to_be_bytes());
        out
    }
}

impl Header {
    fn write(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(SIGNATURE);
        put_u16(out, field_offset::VERSION_OFFSET, PROTOCOL_VERSION);
        put_u16(out, field_offset::PORT_OFFSET, self.port);
        put_u64(out, field_offset::CURRENT_EPOCH_OFFSET, self.current_epoch.0);
        put_u64(out, field_offset::CONFIG_EPOCH_OFFSET, self.config_epoch.0);
        put_u64(out, field_offset::REPL_OFFSET_OFFSET, self.offset.0);
        out[field_offset::SENDER_OFFSET..field_offset::SLOTS_OFFSET].copy_from_slice(self.sender.as_bytes());
        out[field_offset::SLOTS_OFFSET..field_offset::REPLICA_OF_OFFSET]
            .copy_from_slice(self.slots.as_bitmap());
        if let Some(master) = self.replica_of {
            out[field_offset::REPLICA_OF_OFFSET..field_offset::IP_OFFSET].copy_from_slice(master.as_bytes());
        }
        out[field_offset::IP_OFFSET..field_offset::EXTENSION_COUNT_OFFSET]
            .copy_from_slice(&encode_ip(self.ip));
        put_u16(out, field_offset::SECONDARY_PORT_OFFSET, self.secondary_port);
        put_u16(out, field_offset::BUS_PORT_OFFSET, self.bus_port);
        put_u16(out, field_offset::FLAGS_OFFSET, self.flags.0);
        out[field_offset::STATE_OFFSET] = u8::from(!self.is_serving);
        out[field_offset::MESSAGE_FLAGS_OFFSET] = self.message_flags.0;
    }
}

impl GossipSection {
    fn append(&self, out: &mut Vec<u8>) {
        out.reserve(self.entries.len() * GOSSIP_ENTRY_BYTES);
        for entry in &self.entries {
            entry.append(out);
        }
        for extension in &self.extensions {
            extension.encode(out);
        }
        put_u16(
            out,
            field_offset::ENTRY_COUNT_OFFSET,
            u16::try_from(self.entries.len()).expect("gossip is capped when composed"),
        );
        put_u16(
            out,
            field_offset::EXTENSION_COUNT_OFFSET,
            u16::try_from(self.extensions.len()).expect("as are extensions"),
        );
        if !self.extensions.is_empty() {
            out[field_offset::MESSAGE_FLAGS_OFFSET] |= MessageFlags::EXTENSIONS.0;
        }
    }
}

impl GossipEntry {
    fn append(&self, out: &mut Vec<u8>) {
        put_id(out, self.id);
        out.extend(self.ping_sent.to_be_bytes());
        out.extend(self.pong_received.to_be_bytes());
        out.extend(encode_ip(self.ip));
        out.extend(self.port.to_be_bytes());
        out.extend(self.bus_port.to_be_bytes());
        out.extend(self.flags.0.to_be_bytes());
        out.extend(self.secondary_port.to_be_bytes());
        out.extend([0; 2]);
    }
}

impl Publication {
    fn append(&self, out: &mut Vec<u8>) {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a bulk string is below 4 GiB");
        out.extend(len(&self.channel).to_be_bytes());
        out.extend(len(&self.message).to_be_bytes());
        out.extend(&self.channel);
        out.extend(&self.message);
    }
}

pub(super) fn put_id(out: &mut Vec<u8>, id: NodeId) {
    out.extend(id.as_bytes());
}

fn put_u16(out: &mut [u8], offset: usize, value: u16) {
    out[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

fn put_u64(out: &mut [u8], offset: usize, value: u64) {
    out[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
}

fn encode_ip(ip: Option<IpAddr>) -> [u8; IP_BYTES] {
    let mut field = [0; IP_BYTES];
    if let Some(ip) = ip {
        write!(&mut field[..], "{ip}").expect("the longest address has 45 characters");
    }
    field
}
