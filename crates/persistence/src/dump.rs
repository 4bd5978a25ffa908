//! The payload of DUMP and RESTORE: a type code, the value, the format version (two bytes, little-endian) and a CRC64
//! of all preceding bytes.

use keyspace::{DetachedValue, EncodingLimits, PackedValue, Value};

use crate::checksum::Checksum;
use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::{RdbError, RdbErrorReason};
use crate::rdb::FUNCTION_OPCODE;
use crate::rdb::KEY_META_OPCODE;
use crate::value::{self, ValueBuffer};
use crate::{AcceptedVersions, Dialect, InputChecks, VALKEY_WRITTEN_VERSION};

const VERSION_LEN: usize = 2;
const CHECKSUM_LEN: usize = 8;

/// Why a payload was rejected. [`std::fmt::Display`] gives the error text sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The version is not supported, or the checksum does not match.
    #[error("ERR DUMP payload version or checksum are wrong")]
    VersionOrChecksum,
    /// The value is malformed.
    #[error("ERR Bad data format")]
    BadData(RdbErrorReason),
}

impl From<RdbError> for RestoreError {
    fn from(error: RdbError) -> Self {
        Self::BadData(error.reason)
    }
}

/// Serializes a value in the format of DUMP.
#[must_use]
pub fn dump(value: &Value<'_>, dialect: Dialect, compress: bool) -> Vec<u8> {
    const WRITE_CANNOT_FAIL: &str = "writing to memory does not fail";
    let mut encoder = Encoder::new(Vec::new(), compress, true);
    let code = value::type_code(value, dialect);
    encoder.write_byte(code).expect(WRITE_CANNOT_FAIL);
    value::write(code, value, &mut encoder).expect(WRITE_CANNOT_FAIL);
    encoder.write_bytes(&dialect.written_version().to_le_bytes()).expect(WRITE_CANNOT_FAIL);
    let checksum = encoder.checksum().expect(WRITE_CANNOT_FAIL);
    encoder.write_bytes(&checksum.to_le_bytes()).expect(WRITE_CANNOT_FAIL);
    encoder.finish().expect(WRITE_CANNOT_FAIL)
}

/// A deserialized value.
#[derive(Debug)]
pub enum RestoredValue<'a> {
    /// A complete value in its packed encoding.
    Whole(PackedValue<'a>),
    /// A value that was too large to be decoded at once, so it was assembled from its parts.
    Multipart(DetachedValue),
}

/// Deserializes a DUMP payload into `buffer`. `limits` are the thresholds for the OBJECT ENCODING of a collection;
/// `checks` says how thoroughly the payload is validated.
///
/// # Errors
/// A wrong checksum or version, or a malformed value.
pub fn restore<'a>(
    payload: &[u8],
    max_string: u64,
    limits: EncodingLimits,
    checks: InputChecks,
    buffer: &'a mut ValueBuffer,
) -> Result<RestoredValue<'a>, RestoreError> {
    buffer.set_limits(limits);
    buffer.set_depth(checks.depth);
    let (body, version) = verify_trailer(payload, checks.versions).ok_or(RestoreError::VersionOrChecksum)?;
    let mut source = RdbReader::new(body, body.len(), max_string, false);
    let mut code = source.read_byte()?;
    if code == KEY_META_OPCODE && version < VALKEY_WRITTEN_VERSION {
        value::skip_key_metadata(&mut source)?;
        code = source.read_byte()?;
    }
    value::read(code, &mut source, buffer)?;
    if !buffer.is_part() {
        return Ok(RestoredValue::Whole(buffer.value()));
    }
    let mut large = DetachedValue::empty_large(buffer.value().kind());
    loop {
        if !large.add_part(buffer.value(), &limits) {
            let reason = RdbErrorReason::BadValue("a value with the same element twice, or out of order");
            return Err(RestoreError::BadData(reason));
        }
        if !buffer.is_part() {
            return Ok(RestoredValue::Multipart(large));
        }
        value::read_next_part(&mut source, buffer)?;
    }
}

/// Serializes function libraries in the format of FUNCTION DUMP.
#[must_use]
pub fn dump_functions<'a>(codes: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    const WRITE_CANNOT_FAIL: &str = "writing to memory does not fail";
    let mut encoder = Encoder::new(Vec::new(), true, true);
    for code in codes {
        encoder.write_byte(FUNCTION_OPCODE).expect(WRITE_CANNOT_FAIL);
        encoder.write_string(code).expect(WRITE_CANNOT_FAIL);
    }
    encoder.write_bytes(&Dialect::Redis.written_version().to_le_bytes()).expect(WRITE_CANNOT_FAIL);
    let checksum = encoder.checksum().expect(WRITE_CANNOT_FAIL);
    encoder.write_bytes(&checksum.to_le_bytes()).expect(WRITE_CANNOT_FAIL);
    encoder.finish().expect(WRITE_CANNOT_FAIL)
}

/// Returns the source texts of the libraries in a FUNCTION DUMP payload.
///
/// # Errors
/// A wrong checksum or version, or an item that is not a library.
pub fn restore_functions(
    payload: &[u8],
    max_string: u64,
    versions: AcceptedVersions,
) -> Result<Vec<Vec<u8>>, RestoreError> {
    let (body, _) = verify_trailer(payload, versions).ok_or(RestoreError::VersionOrChecksum)?;
    let mut source = RdbReader::new(body, body.len(), max_string, false);
    let mut codes = Vec::new();
    while source.offset() < body.len() as u64 {
        let item = source.read_byte()?;
        if item != FUNCTION_OPCODE {
            return Err(RestoreError::BadData(RdbErrorReason::UnknownType(item)));
        }
        let mut code = Vec::new();
        source.read_string(&mut code)?;
        codes.push(code);
    }
    Ok(codes)
}

/// Returns the payload with a correct checksum (for DEBUG SET-SKIP-CHECKSUM-VALIDATION); `None` if it is too short to
/// contain one.
#[must_use]
pub fn with_corrected_checksum(payload: &[u8]) -> Option<Vec<u8>> {
    let (covered, _) = payload.split_last_chunk::<CHECKSUM_LEN>()?;
    let mut expected = Checksum::new();
    expected.update(covered);
    Some([covered, &expected.value().to_le_bytes()].concat())
}

/// Returns the payload without its trailer, and the format version, if version and checksum are valid.
fn verify_trailer(payload: &[u8], versions: AcceptedVersions) -> Option<(&[u8], u16)> {
    let (covered, checksum) = payload.split_last_chunk::<CHECKSUM_LEN>()?;
    let (body, version) = covered.split_last_chunk::<VERSION_LEN>()?;
    let mut expected = Checksum::new();
    expected.update(covered);
    let version = u16::from_le_bytes(*version);
    let sound = versions.includes(version) && u64::from_le_bytes(*checksum) == expected.value();
    sound.then_some((body, version))
}

#[cfg(test)]
mod tests {
    use keyspace::{EncodingHint, Kind, ListpackBounds, StringRef};
    use proptest::prelude::*;

    use super::*;

    fn dump_value(bytes: &[u8]) -> Vec<u8> {
        dump(
            &Value::String(StringRef { bytes, encoding_hint: EncodingHint::ByContent }),
            Dialect::Redis,
            true,
        )
    }

    fn restore_payload<'a>(
        payload: &[u8],
        limits: EncodingLimits,
        buffer: &'a mut ValueBuffer,
    ) -> Result<RestoredValue<'a>, RestoreError> {
        restore(payload, 1 << 29, limits, InputChecks::default(), buffer)
    }

    fn restore_value(payload: &[u8]) -> Result<Vec<u8>, RestoreError> {
        match restore_payload(payload, EncodingLimits::default(), &mut ValueBuffer::new())? {
            RestoredValue::Whole(value) if value.kind() == Kind::String => Ok(value.bytes().to_vec()),
            _ => panic!("only strings are tested here"),
        }
    }

    /// Appends the format version and a valid checksum to a body.
    fn append_trailer(body: &[u8], version: u16) -> Vec<u8> {
        let mut payload = body.to_vec();
        payload.extend_from_slice(&version.to_le_bytes());
        let mut checksum = Checksum::new();
        checksum.update(&payload);
        payload.extend_from_slice(&checksum.value().to_le_bytes());
        payload
    }

    #[test]
    fn payloads_match_redis() {
        // Payloads that DUMP returned on Redis 7.0.
        let table: &[(&[u8], &[u8])] = &[
            (b"10", b"\x00\xc0\n\n\x00n\x9fWE\x0e\xaec\xbb"),
            (b"hello", b"\x00\x05hello\n\x00cr\xdfve4 \n"),
        ];
        for &(value, payload) in table {
            assert_eq!(dump_value(value), payload);
            assert_eq!(restore_value(payload).as_deref(), Ok(value));
        }
        // Payloads that DUMP returned on Redis 8.0 and Valkey 9.1.
        let newer: [&[u8]; 2] = [
            b"\x00\x05hello\x0c\x00\xa8\x04\xeb\xb6\x9f\x1e\xbeC",
            b"\x00\x05helloP\x00\xacX\x16\xe7\xfbfG\xfe",
        ];
        for payload in newer {
            assert_eq!(restore_value(payload).as_deref(), Ok(&b"hello"[..]));
        }
    }

    #[test]
    fn corrupted_payloads_are_rejected() {
        let payload = dump_value(b"some value");
        for at in 0..payload.len() {
            let mut wrong = payload.clone();
            wrong[at] ^= 1;
            assert_eq!(restore_value(&wrong), Err(RestoreError::VersionOrChecksum), "byte {at}");
            assert_eq!(restore_value(&payload[..at]), Err(RestoreError::VersionOrChecksum), "cut at {at}");
        }
    }

    #[test]
    fn newer_versions_and_malformed_bodies_are_rejected() {
        assert_eq!(restore_value(&append_trailer(b"\x00\x01a", 13)), Ok(b"a".to_vec()));
        for version in [14, 79, 82] {
            let payload = append_trailer(b"\x00\x01a", version);
            assert_eq!(restore_value(&payload), Err(RestoreError::VersionOrChecksum));
            let checks = InputChecks { versions: AcceptedVersions::Any, ..InputChecks::default() };
            let mut buffer = ValueBuffer::new();
            assert!(
                restore(&payload, 1 << 29, EncodingLimits::default(), checks, &mut buffer).is_ok(),
                "{version}"
            );
        }
        for body in [&b""[..], b"\x00", b"\x00\x05a", b"\xff\x01a", b"\x07\x01a", b"\x00\xc3\x01\x50\x00"] {
            assert!(
                matches!(restore_value(&append_trailer(body, 10)), Err(RestoreError::BadData(_))),
                "{body:?}"
            );
        }
    }

    /// Builds the payload of a hash with this many fields; the last field is called `last`.
    fn dump_hash(fields: u32, last: &str) -> Vec<u8> {
        let mut encoder = Encoder::new(Vec::new(), true, false);
        encoder.write_byte(4).unwrap();
        encoder.write_len(u64::from(fields)).unwrap();
        for number in 1..=fields {
            let name = if number == fields { last.to_owned() } else { format!("field:{number}") };
            encoder.write_string(name.as_bytes()).unwrap();
            encoder.write_string(&[&number.to_le_bytes()[..]; 20].concat()).unwrap();
        }
        append_trailer(&encoder.finish().unwrap(), 10)
    }

    #[test]
    fn large_hash_restores_in_parts_without_duplicates() {
        let keyspace = keyspace::Keyspace::new(1, 1);
        let key = keyspace.key(b"key");
        let payload = dump_hash(20_000, "last");
        let mut buffer = ValueBuffer::new();
        let Ok(RestoredValue::Multipart(hash)) =
            restore_payload(&payload, EncodingLimits::default(), &mut buffer)
        else {
            panic!("it is large")
        };
        let mut slot = keyspace.lock(key.slot());
        let place = slot.table(0).attach(&key, hash, None);
        let hash = slot.table(0).hash(place).expect("a hash was put there");
        assert_eq!((hash.len(), hash.encoding()), (20_000, "hashtable"));
        for number in [1, 700, 19_999, 20_000u32] {
            let name = if number == 20_000 { "last".to_owned() } else { format!("field:{number}") };
            let field = hash.get(name.as_bytes()).expect("the field is there");
            assert_eq!(field.value, [&number.to_le_bytes()[..]; 20].concat());
        }
        let twice = dump_hash(20_000, "field:1");
        let refused = restore_payload(&twice, EncodingLimits::default(), &mut buffer).map(|_| ());
        assert!(matches!(refused, Err(RestoreError::BadData(_))));
        let few = EncodingLimits {
            hash: ListpackBounds { max_entries: 1 << 20, max_value_len: 100 },
            ..EncodingLimits::default()
        };
        let Ok(RestoredValue::Multipart(hash)) = restore_payload(&payload, few, &mut buffer) else {
            panic!("it is large")
        };
        let other = keyspace.key(b"{key}2");
        let place = slot.table(0).attach(&other, hash, None);
        assert_eq!(slot.table(0).hash(place).map(|hash| hash.encoding()), Some("listpack"));
    }

    proptest! {
        #[test]
        fn dumped_strings_round_trip(value in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(restore_value(&dump_value(&value)), Ok(value));
        }

        #[test]
        fn arbitrary_bodies_with_valid_trailer_do_not_panic(body in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = restore_value(&append_trailer(&body, 10));
        }
    }
}
