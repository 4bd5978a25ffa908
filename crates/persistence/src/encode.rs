//! Encodes RDB lengths and strings.
//!
//! A length takes one byte (00 and six bits), two (01 and fourteen bits), five (0x80 and 32 bits) or nine
//! (0x81 and 64 bits), big-endian. A first byte with the high bits 11 marks a special string instead: an
//! integer of 1, 2 or 4 bytes, little-endian, or LZF (compressed length, length, compressed bytes).

use std::io::{self, Write};

use resp::parse_i64;

use crate::checksum::Checksum;
use crate::compress::Compressor;

pub(crate) const LEN_14_BITS: u8 = 0x40;
pub(crate) const LEN_32_BITS: u8 = 0x80;
pub(crate) const LEN_64_BITS: u8 = 0x81;
pub(crate) const STRING_INT8: u8 = 0xC0;
pub(crate) const STRING_INT16: u8 = 0xC1;
pub(crate) const STRING_INT32: u8 = 0xC2;
pub(crate) const STRING_LZF: u8 = 0xC3;

/// Minimum length of a string to be compressed. As in Redis, the compressed string must also be at least four bytes
/// shorter.
const MIN_COMPRESSED_LEN: usize = 21;
const MIN_SAVED_BYTES: usize = 4;
/// After this many futile attempts in a row, only one in `SAMPLE_INTERVAL` strings shorter than
/// `MIN_ALWAYS_COMPRESSED_LEN` is compressed.
const MISSES_BEFORE_SAMPLING: u32 = 64;
const SAMPLE_INTERVAL: u32 = 8;
const MIN_ALWAYS_COMPRESSED_LEN: usize = 512;
/// Length of the longest integer that is encoded as a number: `-2147483648`.
const MAX_INTEGER_LEN: usize = 11;
/// Number of buffered bytes at which the buffer is written out.
const BUFFER_LEN: usize = 64 * 1024;

/// Writes RDB lengths and strings, and computes the checksum.
#[derive(Debug)]
pub(crate) struct Encoder<W> {
    out: W,
    buffer: Vec<u8>,
    checksum: Option<Checksum>,
    compressor: Option<Compressor>,
    /// Reusable buffer for the compressor's output.
    compressed_buffer: Vec<u8>,
    /// Number of consecutive strings that compression did not shorten enough.
    incompressible_strings: u32,
    /// Number of strings that were written without an attempt to compress them, since the last attempt.
    skipped_strings: u32,
    written: u64,
}

impl<W: Write> Encoder<W> {
    pub(crate) fn new(out: W, compress: bool, checksum: bool) -> Self {
        Self {
            out,
            buffer: Vec::with_capacity(256),
            checksum: checksum.then(Checksum::new),
            compressor: compress.then(Compressor::default),
            compressed_buffer: Vec::new(),
            incompressible_strings: 0,
            skipped_strings: 0,
            written: 0,
        }
    }

    pub(crate) fn write_byte(&mut self, byte: u8) -> io::Result<()> {
        self.write_bytes(&[byte])
    }

    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_LEN {
            self.flush_buffer()?;
        }
        if bytes.len() >= BUFFER_LEN {
            return self.write_to_output(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn write_len(&mut self, len: u64) -> io::Result<()> {
        if len < 1 << 6 {
            self.write_byte(len as u8)
        } else if len < 1 << 14 {
            self.write_bytes(&[LEN_14_BITS | (len >> 8) as u8, len as u8])
        } else if let Ok(len) = u32::try_from(len) {
            self.write_byte(LEN_32_BITS)?;
            self.write_bytes(&len.to_be_bytes())
        } else {
            self.write_byte(LEN_64_BITS)?;
            self.write_bytes(&len.to_be_bytes())
        }
    }

    /// Writes a string in its shortest encoding.
    pub(crate) fn write_string(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() <= MAX_INTEGER_LEN
            && let Some(value) = parse_i64(bytes)
            && let Ok(value) = i32::try_from(value)
        {
            return self.write_integer(value);
        }
        if bytes.len() >= MIN_COMPRESSED_LEN
            && self.should_compress(bytes.len())
            && let Some(compressor) = &mut self.compressor
        {
            let mut compressed = std::mem::take(&mut self.compressed_buffer);
            let shrinks = compressor.compress(bytes, bytes.len() - MIN_SAVED_BYTES, &mut compressed);
            self.incompressible_strings =
                if shrinks { 0 } else { self.incompressible_strings.saturating_add(1) };
            let outcome = if shrinks { self.write_lzf(&compressed, bytes.len()) } else { Ok(()) };
            self.compressed_buffer = compressed;
            if shrinks {
                return outcome;
            }
        }
        self.write_len(bytes.len() as u64)?;
        self.write_bytes(bytes)
    }

    fn write_lzf(&mut self, compressed: &[u8], len: usize) -> io::Result<()> {
        self.write_byte(STRING_LZF)?;
        self.write_len(compressed.len() as u64)?;
        self.write_len(len as u64)?;
        self.write_bytes(compressed)
    }

    /// Returns whether to try compressing a string of this length. The strings of one server are similar, so after many
    /// futile attempts only a sample of the short strings is tried.
    fn should_compress(&mut self, len: usize) -> bool {
        if self.incompressible_strings < MISSES_BEFORE_SAMPLING || len >= MIN_ALWAYS_COMPRESSED_LEN {
            return true;
        }
        self.skipped_strings = (self.skipped_strings + 1) % SAMPLE_INTERVAL;
        self.skipped_strings == 0
    }

    fn write_integer(&mut self, value: i32) -> io::Result<()> {
        if let Ok(value) = i8::try_from(value) {
            self.write_bytes(&[STRING_INT8, value as u8])
        } else if let Ok(value) = i16::try_from(value) {
            self.write_byte(STRING_INT16)?;
            self.write_bytes(&value.to_le_bytes())
        } else {
            self.write_byte(STRING_INT32)?;
            self.write_bytes(&value.to_le_bytes())
        }
    }

    /// Returns the number of bytes written so far.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn flush_buffer(&mut self) -> io::Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.write_to_output(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
        result
    }

    /// Returns the checksum of everything written so far; zero if checksums are disabled.
    pub(crate) fn checksum(&mut self) -> io::Result<u64> {
        self.flush_buffer()?;
        Ok(self.checksum.as_ref().map_or(0, Checksum::value))
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.flush_buffer()?;
        Ok(self.out)
    }

    fn write_to_output(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(checksum) = &mut self.checksum {
            checksum.update(bytes);
        }
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode_with(compress: bool, write: impl FnOnce(&mut Encoder<Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
        let mut encoder = Encoder::new(Vec::new(), compress, true);
        write(&mut encoder).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lengths_use_the_shortest_encoding() {
        let table: &[(u64, &[u8])] = &[
            (0, &[0]),
            (63, &[63]),
            (64, &[0x40, 64]),
            (16383, &[0x7F, 0xFF]),
            (16384, &[0x80, 0, 0, 0x40, 0]),
            (u64::from(u32::MAX), &[0x80, 0xFF, 0xFF, 0xFF, 0xFF]),
            (1 << 32, &[0x81, 0, 0, 0, 1, 0, 0, 0, 0]),
        ];
        for &(len, bytes) in table {
            assert_eq!(encode_with(true, |e| e.write_len(len)), bytes, "{len}");
        }
    }

    #[test]
    fn strings_use_the_shortest_encoding() {
        let table: &[(&[u8], &[u8])] = &[
            (b"", &[0]),
            (b"ab", &[2, b'a', b'b']),
            (b"12", &[0xC0, 12]),
            (b"-128", &[0xC0, 0x80]),
            (b"128", &[0xC1, 0x80, 0]),
            (b"-32769", &[0xC2, 0xFF, 0x7F, 0xFF, 0xFF]),
            (b"2147483648", b"\x0A2147483648"),
            (b"012", &[3, b'0', b'1', b'2']),
            (&[b'x'; 21], &[0xC3, 5, 21, 0, b'x', 0xE0, 11, 0]),
        ];
        for &(string, bytes) in table {
            assert_eq!(encode_with(true, |e| e.write_string(string)), bytes, "{string:?}");
        }
        assert_eq!(
            encode_with(false, |e| e.write_string(&[b'x'; 21]))[..2],
            [21, b'x'],
            "compression is disabled"
        );
    }

    #[test]
    fn compression_resumes_after_many_misses() {
        let mut encoder = Encoder::new(Vec::new(), true, false);
        for number in 0..1000u64 {
            let bytes: Vec<u8> = (1..6)
                .flat_map(|seed| (number * 5 + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
                .collect();
            encoder.write_string(&bytes).unwrap();
        }
        let before = encoder.bytes_written();
        (0..1000).for_each(|_| encoder.write_string(&[b'x'; 40]).unwrap());
        assert!(encoder.bytes_written() - before < 9 * 1000 + 40 * u64::from(SAMPLE_INTERVAL));
    }

    #[test]
    fn long_strings_bypass_the_buffer_in_order() {
        let long = vec![b'q'; 3 * BUFFER_LEN];
        let out = encode_with(false, |e| {
            e.write_byte(1)?;
            e.write_bytes(&long)?;
            e.write_byte(2)
        });
        assert_eq!(out.len(), long.len() + 2);
        assert_eq!((out[0], out[1], out[long.len() + 1]), (1, b'q', 2));
    }
}
