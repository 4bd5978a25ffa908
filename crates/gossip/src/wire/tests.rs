//! Round trips of packets, and rejection of malformed bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use slot_routing::{Epoch, NodeId, ReplOffset, Slot, SlotSet};

use super::*;

fn ids() -> impl Strategy<Value = NodeId> {
    any::<[u8; 20]>().prop_map(NodeId::from_random)
}

fn ips() -> impl Strategy<Value = Option<IpAddr>> {
    prop_oneof![
        Just(None),
        any::<[u8; 4]>().prop_map(|bytes| Some(IpAddr::from(Ipv4Addr::from(bytes)))),
        any::<[u8; 16]>().prop_map(|bytes| Some(IpAddr::from(Ipv6Addr::from(bytes)))),
    ]
}

fn slot_sets() -> impl Strategy<Value = SlotSet> {
    vec(0..16384_u16, 0..40).prop_map(|slots| slots.into_iter().filter_map(Slot::new).collect())
}

fn headers() -> impl Strategy<Value = Header> {
    let whom = (ids(), any::<u16>(), 0..8_u8, any::<bool>(), ips(), any::<[u16; 3]>());
    let what = ([0..MAX_EPOCH, 0..MAX_EPOCH, 0..u64::MAX], slot_sets(), proptest::option::of(ids()));
    (whom, what).prop_map(
        |((sender, flags, message_flags, serving, ip, ports), (numbers, slots, replica_of))| Header {
            sender,
            flags: NodeFlags(flags),
            message_flags: MessageFlags(message_flags),
            is_serving: serving,
            ip,
            port: ports[0],
            secondary_port: ports[1],
            bus_port: ports[2],
            current_epoch: Epoch(numbers[0]),
            config_epoch: Epoch(numbers[1]),
            offset: ReplOffset(numbers[2]),
            slots,
            replica_of,
        },
    )
}

fn entries() -> impl Strategy<Value = GossipEntry> {
    (ids(), any::<[u32; 2]>(), ips(), any::<[u16; 4]>()).prop_map(|(id, times, ip, shorts)| GossipEntry {
        id,
        ping_sent: times[0],
        pong_received: times[1],
        ip,
        port: shorts[0],
        bus_port: shorts[1],
        flags: NodeFlags(shorts[2]),
        secondary_port: shorts[3],
    })
}

fn extensions() -> impl Strategy<Value = Extension> {
    prop_oneof![
        "[a-z0-9.-]{0,60}".prop_map(Extension::Hostname),
        "[a-zA-Z0-9_]{0,60}".prop_map(Extension::HumanName),
        (ids(), any::<u64>())
            .prop_map(|(id, ttl)| Extension::Forgotten { id, ttl: Duration::from_secs(ttl) }),
        ids().prop_map(Extension::Shard),
        any::<[u8; 4]>().prop_map(|bytes| Extension::ClientIpv4(bytes.into())),
        any::<[u8; 16]>().prop_map(|bytes| Extension::ClientIpv6(bytes.into())),
        any::<u16>().prop_map(Extension::ClientPort),
        any::<u16>().prop_map(Extension::ClientTlsPort),
        "[a-z0-9-]{0,60}".prop_map(Extension::Zone),
    ]
}

fn bodies() -> impl Strategy<Value = MessageBody> {
    let gossip = || {
        (vec(entries(), 0..8), vec(extensions(), 0..4))
            .prop_map(|(entries, extensions)| GossipSection { entries, extensions })
    };
    prop_oneof![
        gossip().prop_map(MessageBody::Ping),
        gossip().prop_map(MessageBody::Pong),
        gossip().prop_map(MessageBody::Meet),
        ids().prop_map(MessageBody::Fail),
        (any::<bool>(), vec(any::<u8>(), 0..50), vec(any::<u8>(), 0..50)).prop_map(
            |(sharded, channel, message)| MessageBody::Publish(Publication {
                is_sharded: sharded,
                channel,
                message
            })
        ),
        Just(MessageBody::AuthRequest),
        Just(MessageBody::AuthAck),
        Just(MessageBody::ManualFailoverStart),
        (0..MAX_EPOCH, ids(), slot_sets()).prop_map(|(epoch, id, slots)| MessageBody::Update(ConfigUpdate {
            config_epoch: Epoch(epoch),
            id,
            slots
        })),
        (11..u16::MAX).prop_map(MessageBody::Unsupported),
        Just(MessageBody::Unsupported(9)),
    ]
}

fn packets() -> impl Strategy<Value = Packet> {
    (headers(), bodies()).prop_map(|(mut header, body)| {
        if let MessageBody::Ping(gossip) | MessageBody::Pong(gossip) | MessageBody::Meet(gossip) = &body
            && !gossip.extensions.is_empty()
        {
            header.message_flags |= MessageFlags::EXTENSIONS;
        }
        Packet { header, body }
    })
}

proptest! {
    #[test]
    fn packets_round_trip(packet in packets()) {
        let bytes = packet.encode();
        prop_assert_eq!(packet_len(&bytes), Ok(Some(bytes.len())));
        prop_assert_eq!(decode(&bytes), Ok(packet));
    }

    #[test]
    fn truncated_packets_are_rejected(packet in packets()) {
        let bytes = packet.encode();
        for end in (0..bytes.len()).step_by(7).chain(bytes.len().saturating_sub(130)..bytes.len()) {
            prop_assert!(decode(&bytes[..end]).is_err(), "cut at {}", end);
            if end < 8 {
                prop_assert_eq!(packet_len(&bytes[..end]), Ok(None));
            }
        }
    }

    #[test]
    fn random_bytes_are_rejected(bytes in vec(any::<u8>(), 0..4000)) {
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn decoding_mutated_packets_never_panics(packet in packets(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = packet.encode();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(packet) = decode(&bytes) {
            prop_assert_eq!(decode(&packet.encode()), Ok(packet));
        }
    }
}

fn empty_ping() -> Packet {
    let header = Header {
        sender: NodeId::from_random([0xAB; 20]),
        flags: NodeFlags::MASTER | NodeFlags::MYSELF,
        message_flags: MessageFlags::default(),
        is_serving: false,
        ip: Some(IpAddr::from([10, 0, 0, 7])),
        port: 7000,
        secondary_port: 7443,
        bus_port: 17000,
        current_epoch: Epoch(0x0102),
        config_epoch: Epoch(0x0304),
        offset: ReplOffset(0x0506),
        slots: [Slot::new(10).unwrap()].into_iter().collect(),
        replica_of: None,
    };
    Packet { header, body: MessageBody::Ping(GossipSection::default()) }
}

#[test]
fn header_fields_have_the_specified_offsets() {
    let bytes = empty_ping().encode();
    assert_eq!(bytes.len(), 2256);
    assert_eq!(bytes[..16], *b"RCmb\0\0\x08\xd0\0\x01\x1b\x58\0\0\0\0");
    assert_eq!(bytes[16..40], *b"\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0\x05\x06");
    assert_eq!(bytes[40..80], *"ab".repeat(20).as_bytes());
    assert_eq!(bytes[81], 0b100);
    assert_eq!(bytes[2128..2168], [0; 40]);
    assert_eq!(bytes[2168..2177], *b"10.0.0.7\0");
    assert_eq!(bytes[2246..2253], *b"\x1d\x13\x42\x68\0\x11\x01");
}

#[test]
fn malformed_packets_are_rejected_with_the_right_error() {
    let good = empty_ping().encode();
    let with = |place: usize, bytes: &[u8]| {
        let mut packet = good.clone();
        packet[place..place + bytes.len()].copy_from_slice(bytes);
        packet
    };
    // Columns: the bytes of a packet, the expected error
    let table = [
        (with(0, b"RCmc"), DecodeError::WrongSignature),
        (with(4, &2257_u32.to_be_bytes()), DecodeError::LengthMismatch),
        (with(4, &100_u32.to_be_bytes()), DecodeError::LengthMismatch),
        (with(4, &u32::MAX.to_be_bytes()), DecodeError::PacketTooLong(u32::MAX as usize)),
        (with(8, &[0, 0]), DecodeError::UnsupportedVersion(0)),
        (with(14, &[0, 1]), DecodeError::LengthMismatch),
        (with(14, &[255, 255]), DecodeError::LengthMismatch),
        (with(16, &[0xFF]), DecodeError::EpochTooHigh(0xFF00_0000_0000_0102)),
        (with(40, b"X"), DecodeError::InvalidNodeId),
        (with(2128, b"abc"), DecodeError::InvalidNodeId),
    ];
    for (bytes, error) in table {
        assert_eq!(decode(&bytes), Err(error));
    }
    // A packet with the extension flag and an extension count of zero is valid.
    assert!(decode(&with(2253, &[4])).is_ok());
    let mut counted = with(2253, &[4]);
    counted[field_offset::EXTENSION_COUNT_OFFSET + 1] = 1;
    assert_eq!(decode(&counted), Err(DecodeError::LengthMismatch));
}

#[test]
fn unknown_extensions_and_malformed_strings_are_skipped() {
    let mut bytes = empty_ping().encode();
    bytes[field_offset::MESSAGE_FLAGS_OFFSET] = 4;
    bytes[field_offset::EXTENSION_COUNT_OFFSET + 1] = 3;
    bytes.extend(b"\0\0\0\x10\0\x63\0\0whatever");
    bytes.extend(b"\0\0\0\x10\0\0\0\0new\nline");
    bytes.extend(b"\0\0\0\x10\0\0\0\0host\0\0\0\0");
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_be_bytes());
    let MessageBody::Ping(gossip) = decode(&bytes).unwrap().body else { panic!("a ping") };
    assert_eq!(gossip.extensions, [Extension::Hostname("host".to_owned())]);
}
