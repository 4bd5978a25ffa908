//! Decodes RDB lengths and strings; the inverse of `encode`, with bounds checks.
//!
//! A string's buffer grows with the bytes received, so that a false length cannot allocate much memory.

use std::io::{self, Read};

use crate::checksum::Checksum;
use crate::compress::decompress;
use crate::encode::{LEN_32_BITS, LEN_64_BITS, STRING_INT8, STRING_INT16, STRING_INT32, STRING_LZF};
use crate::error::{RdbError, RdbErrorReason};

/// Number of bytes read at once, and by which a string buffer grows.
const WINDOW_BYTES: usize = 64 * 1024;

/// A length, or the marker of a special encoding in place of a length.
enum LengthPrefix {
    Len(u64),
    /// The string that follows has this special encoding.
    Special(u8),
}

/// A sequential RDB reader.
#[derive(Debug)]
pub(crate) struct RdbReader<R> {
    input: R,
    window: Box<[u8]>,
    position: usize,
    window_len: usize,
    bytes_before_window: u64,
    checksum: Option<Checksum>,
    /// Offset in the window of the first byte that the checksum does not yet include.
    checksummed_len: usize,
    max_string_len: u64,
    /// Reusable buffer for the compressed bytes of a string.
    compressed_buffer: Vec<u8>,
}

impl<R: Read> RdbReader<R> {
    pub(crate) fn new(input: R, window_len: usize, max_string: u64, verify_checksum: bool) -> Self {
        Self {
            input,
            window: vec![0; window_len.clamp(16, WINDOW_BYTES)].into(),
            position: 0,
            window_len: 0,
            bytes_before_window: 0,
            checksum: verify_checksum.then(Checksum::new),
            checksummed_len: 0,
            max_string_len: max_string,
            compressed_buffer: Vec::new(),
        }
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn offset(&self) -> u64 {
        self.bytes_before_window + self.position as u64
    }

    pub(crate) fn error(&self, reason: RdbErrorReason) -> RdbError {
        RdbError { offset: self.offset(), reason }
    }

    /// Returns the checksum of everything read so far, if enabled.
    pub(crate) fn checksum(&mut self) -> Option<u64> {
        let checksum = self.checksum.as_mut()?;
        checksum.update(&self.window[self.checksummed_len..self.position]);
        self.checksummed_len = self.position;
        Some(checksum.value())
    }

    pub(crate) fn read_byte(&mut self) -> Result<u8, RdbError> {
        if self.position == self.window_len {
            self.refill()?;
        }
        let byte = self.window[self.position];
        self.position += 1;
        Ok(byte)
    }

    pub(crate) fn read_array<const N: usize>(&mut self) -> Result<[u8; N], RdbError> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.read_byte()?;
        }
        Ok(bytes)
    }

    /// Reads a length. A special string encoding in its place is an error.
    pub(crate) fn read_len(&mut self) -> Result<u64, RdbError> {
        match self.read_prefix()? {
            LengthPrefix::Len(len) => Ok(len),
            LengthPrefix::Special(_) => Err(self.error(RdbErrorReason::NotALength("special string form"))),
        }
    }

    fn read_prefix(&mut self) -> Result<LengthPrefix, RdbError> {
        let first = self.read_byte()?;
        let low = first & 0x3F;
        Ok(match first >> 6 {
            0 => LengthPrefix::Len(u64::from(low)),
            1 => LengthPrefix::Len(u64::from(low) << 8 | u64::from(self.read_byte()?)),
            2 if first == LEN_32_BITS => LengthPrefix::Len(u64::from(u32::from_be_bytes(self.read_array()?))),
            2 if first == LEN_64_BITS => LengthPrefix::Len(u64::from_be_bytes(self.read_array()?)),
            2 => return Err(self.error(RdbErrorReason::NotALength("reserved byte"))),
            _ => LengthPrefix::Special(first),
        })
    }

    /// Reads a string of any encoding into `out`, replacing its content.
    pub(crate) fn read_string(&mut self, out: &mut Vec<u8>) -> Result<(), RdbError> {
        out.clear();
        let value = match self.read_prefix()? {
            LengthPrefix::Len(len) => return self.append_bytes(len, out),
            LengthPrefix::Special(STRING_LZF) => return self.read_compressed(out),
            LengthPrefix::Special(STRING_INT8) => i32::from(i8::from_le_bytes(self.read_array()?)),
            LengthPrefix::Special(STRING_INT16) => i32::from(i16::from_le_bytes(self.read_array()?)),
            LengthPrefix::Special(STRING_INT32) => i32::from_le_bytes(self.read_array()?),
            LengthPrefix::Special(other) => {
                return Err(self.error(RdbErrorReason::UnknownStringEncoding(other & 0x3F)));
            }
        };
        out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        Ok(())
    }

    fn read_compressed(&mut self, out: &mut Vec<u8>) -> Result<(), RdbError> {
        let compressed_len = self.read_len()?;
        let claimed = self.read_len()?;
        if claimed > self.max_string_len {
            return Err(self.error(RdbErrorReason::StringTooLong(claimed)));
        }
        let mut compressed = std::mem::take(&mut self.compressed_buffer);
        compressed.clear();
        self.append_bytes(compressed_len, &mut compressed)?;
        let expanded = decompress(&compressed, claimed);
        compressed.shrink_to(WINDOW_BYTES);
        self.compressed_buffer = compressed;
        let bad_value = RdbErrorReason::BadCompression { compressed: compressed_len, declared: claimed };
        *out = expanded.ok_or_else(|| self.error(bad_value))?;
        Ok(())
    }

    /// Appends the next `len` bytes of the input, growing `out` as they arrive.
    fn append_bytes(&mut self, len: u64, out: &mut Vec<u8>) -> Result<(), RdbError> {
        if len > self.max_string_len {
            return Err(self.error(RdbErrorReason::StringTooLong(len)));
        }
        let mut missing = len as usize;
        while missing > 0 {
            if self.position == self.window_len {
                self.refill()?;
            }
            let taken = missing.min(self.window_len - self.position);
            out.extend_from_slice(&self.window[self.position..self.position + taken]);
            self.position += taken;
            missing -= taken;
        }
        Ok(())
    }

    /// Reads the next window once the current one is used up.
    fn refill(&mut self) -> Result<(), RdbError> {
        debug_assert_eq!(self.position, self.window_len);
        if let Some(checksum) = &mut self.checksum {
            checksum.update(&self.window[self.checksummed_len..self.window_len]);
        }
        self.bytes_before_window += self.window_len as u64;
        (self.position, self.window_len, self.checksummed_len) = (0, 0, 0);
        loop {
            match self.input.read(&mut self.window) {
                Ok(0) => return Err(self.error(RdbErrorReason::UnexpectedEnd)),
                Ok(read) => {
                    self.window_len = read;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(RdbErrorReason::Io(error.kind()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::Encoder;

    fn decode_string(bytes: &[u8]) -> Result<Vec<u8>, RdbErrorReason> {
        let mut out = Vec::new();
        RdbReader::new(bytes, 16, 1000, false)
            .read_string(&mut out)
            .map(|()| out)
            .map_err(|error| error.reason)
    }

    #[test]
    fn strings_round_trip() {
        let strings: [&[u8]; 9] =
            [b"", b"a", b"0", b"-5", b"300", b"70000", b"-2147483648", b"12345678901", &[b'x'; 900]];
        for string in strings {
            let mut encoder = Encoder::new(Vec::new(), true, false);
            encoder.write_string(string).unwrap();
            let bytes = encoder.finish().unwrap();
            assert_eq!(decode_string(&bytes).as_deref(), Ok(string));
            for end in 0..bytes.len() {
                assert!(decode_string(&bytes[..end]).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn bad_lengths_give_specific_errors() {
        let table: &[(&[u8], RdbErrorReason)] = &[
            (&[], RdbErrorReason::UnexpectedEnd),
            (&[5, 1, 2], RdbErrorReason::UnexpectedEnd),
            (&[0x82], RdbErrorReason::NotALength("reserved byte")),
            (&[0xC4], RdbErrorReason::UnknownStringEncoding(4)),
            (&[0x80, 0xFF, 0, 0, 0], RdbErrorReason::StringTooLong(0xFF00_0000)),
            (
                &[0x81, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
                RdbErrorReason::StringTooLong(u64::MAX),
            ),
            (&[0xC3, 0xC0, 1], RdbErrorReason::NotALength("special string form")),
            (&[0xC3, 1, 0x80, 0, 1, 0, 0, 0], RdbErrorReason::StringTooLong(65536)),
            (&[0xC3, 1, 60, 0], RdbErrorReason::BadCompression { compressed: 1, declared: 60 }),
        ];
        for (bytes, reason) in table {
            assert_eq!(decode_string(bytes), Err(*reason), "{bytes:?}");
        }
    }

    #[test]
    fn checksum_does_not_depend_on_window_size() {
        let bytes: Vec<u8> = (0..100).collect();
        for window in [16, 17, 99, 100, 1000] {
            let mut source = RdbReader::new(bytes.as_slice(), window, 1000, true);
            for _ in 0..77 {
                source.read_byte().unwrap();
            }
            let mut expected = Checksum::new();
            expected.update(&bytes[..77]);
            assert_eq!(source.checksum(), Some(expected.value()));
            assert_eq!(source.offset(), 77);
        }
    }
}
