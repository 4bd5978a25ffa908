//! Encodes packets to the layout that [`crate::wire`] describes.

use std::io::Write;
use std::net::IpAddr;

use slot_routing::NodeId;

use super::{
    ENTRY_BYTES, GossipEntry, GossipSection, HEADER_BYTES, Header, IP_BYTES, MessageBody, MessageFlags,
    Packet, Publication, SIGNATURE, VERSION, field_offset,
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
            | MessageBody::Other(_) => {}
        }
        put16(&mut out, field_offset::KIND, self.body.number());
        let length = u32::try_from(out.len()).expect("a packet is far below 4 GiB");
        out[field_offset::LENGTH..field_offset::LENGTH + 4].copy_from_slice(&length.to_be_bytes());
        out
    }
}

impl Header {
    fn write(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(SIGNATURE);
        put16(out, field_offset::VERSION, VERSION);
        put16(out, field_offset::PORT, self.port);
        put64(out, field_offset::CURRENT_EPOCH, self.current_epoch.0);
        put64(out, field_offset::CONFIG_EPOCH, self.config_epoch.0);
        put64(out, field_offset::OFFSET, self.offset.0);
        out[field_offset::SENDER..field_offset::SLOTS].copy_from_slice(self.sender.as_bytes());
        out[field_offset::SLOTS..field_offset::REPLICA_OF].copy_from_slice(self.slots.as_bitmap());
        if let Some(master) = self.replica_of {
            out[field_offset::REPLICA_OF..field_offset::IP_OFFSET].copy_from_slice(master.as_bytes());
        }
        out[field_offset::IP_OFFSET..field_offset::EXTENSIONS].copy_from_slice(&ip_field(self.ip));
        put16(out, field_offset::OTHER_PORT, self.other_port);
        put16(out, field_offset::BUS_PORT, self.bus_port);
        put16(out, field_offset::FLAGS, self.flags.0);
        out[field_offset::STATE] = u8::from(!self.serving);
        out[field_offset::MESSAGE_FLAGS] = self.message_flags.0;
    }
}

impl GossipSection {
    fn append(&self, out: &mut Vec<u8>) {
        out.reserve(self.entries.len() * ENTRY_BYTES);
        for entry in &self.entries {
            entry.append(out);
        }
        for extension in &self.extensions {
            extension.encode(out);
        }
        put16(
            out,
            field_offset::COUNT,
            u16::try_from(self.entries.len()).expect("gossip is capped when composed"),
        );
        put16(
            out,
            field_offset::EXTENSIONS,
            u16::try_from(self.extensions.len()).expect("as are extensions"),
        );
        if !self.extensions.is_empty() {
            out[field_offset::MESSAGE_FLAGS] |= MessageFlags::EXTENSIONS.0;
        }
    }
}

impl GossipEntry {
    fn append(&self, out: &mut Vec<u8>) {
        put_id(out, self.id);
        out.extend(self.ping_sent.to_be_bytes());
        out.extend(self.pong_received.to_be_bytes());
        out.extend(ip_field(self.ip));
        out.extend(self.port.to_be_bytes());
        out.extend(self.bus_port.to_be_bytes());
        out.extend(self.flags.0.to_be_bytes());
        out.extend(self.other_port.to_be_bytes());
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

fn put16(out: &mut [u8], place: usize, value: u16) {
    out[place..place + 2].copy_from_slice(&value.to_be_bytes());
}

fn put64(out: &mut [u8], place: usize, value: u64) {
    out[place..place + 8].copy_from_slice(&value.to_be_bytes());
}

fn ip_field(ip: Option<IpAddr>) -> [u8; IP_BYTES] {
    let mut field = [0; IP_BYTES];
    if let Some(ip) = ip {
        write!(&mut field[..], "{ip}").expect("the longest address has 45 characters");
    }
    field
}
