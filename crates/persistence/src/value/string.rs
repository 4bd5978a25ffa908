//! Strings: one type, its forms told by the length's prefix.

use std::io::{self, Read, Write};

use keyspace::Str;

use crate::decode::Source;
use crate::encode::Encoder;
use crate::error::RdbError;

pub(super) fn write<W: Write>(string: &Str<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    out.string(string.bytes)
}

pub(super) fn read<R: Read>(source: &mut Source<R>, string: &mut Vec<u8>) -> Result<(), RdbError> {
    source.string(string)
}
