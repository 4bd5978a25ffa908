//! The RDB encoding of strings. There is one type code; the length prefix determines the encoding.

use std::io::{self, Read, Write};

use clock::Millis;
use keyspace::StringRef;

use super::commands::Commands;
use super::{Codec, ValueBuffer};
use crate::Dialect;
use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::RdbError;

const TYPE_STRING: u8 = 0;

pub(super) struct StringCodec;

impl Codec for StringCodec {
    const TYPE_CODES: &'static [u8] = &[TYPE_STRING];
    type Value<'a> = StringRef<'a>;

    fn type_code(_: &StringRef<'_>, _: Dialect) -> u8 {
        TYPE_STRING
    }

    fn write<W: Write>(_: u8, string: &StringRef<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        out.write_string(string.bytes)
    }

    fn add_commands(string: &StringRef<'_>, out: &mut Commands) {
        match out.take_expiry() {
            None => out.add_key_command("SET", &[string.bytes]),
            Some(Millis(at)) => {
                out.add_key_command(
                    "SET",
                    &[string.bytes, b"PXAT", itoa::Buffer::new().format(at).as_bytes()],
                );
            }
        }
    }

    fn read<R: Read>(_: u8, source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        buffer.packed.build_string(|bytes| source.read_string(bytes))
    }
}
