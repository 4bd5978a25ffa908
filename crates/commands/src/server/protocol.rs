//! DEBUG PROTOCOL: sample replies of each RESP type, for client developers.

use engine::{CommandError, Context};
use resp::Protocol;

pub(super) fn protocol(context: &mut Context<'_>) -> Result<(), CommandError> {
    let name = context.arg(2).to_ascii_lowercase();
    let reply = &mut context.reply;
    let resp3 = reply.protocol() == Protocol::Resp3;
    match name.as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.integer(12345),
        b"double" => reply.double(3141.0 / 1000.0),
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"map" => {
            reply.map(3);
            for number in 0..3 {
                reply.integer(number);
                reply.boolean(number == 1);
            }
        }
        b"attrib" => {
            if resp3 {
                reply.raw(b"|1\r\n");
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.integer(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" if !resp3 => return Err(CommandError::text("ERR RESP2 is not supported by this command")),
        b"push" => {
            // A push sent during a command follows the command's reply.
            reply.bulk(b"Some real reply following the push reply");
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.integer(42);
        }
        b"verbatim" => reply.verbatim(b"txt", b"This is a verbatim\nstring"),
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        b"bignum" if resp3 => reply.raw(b"(1234567999999999999999999999999999999\r\n"),
        b"bignum" => reply.bulk(b"1234567999999999999999999999999999999"),
        _ => {
            return Err(CommandError::text(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn debug_protocol_replies_with_each_type() {
        let mut client = Client::new();
        client.check_replies(&[
            ("debug protocol map", "*6|:0|:0|:1|:1|:2|:0"),
            ("debug protocol attrib", "$39|Some real reply following the attribute"),
            ("debug protocol push", "-ERR RESP2 is not supported by this command"),
            ("debug protocol bignum", "$37|1234567999999999999999999999999999999"),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[
            ("debug protocol string", "$11|Hello World"),
            ("debug protocol integer", ":12345"),
            ("debug protocol double", ",3.141"),
            ("debug protocol null", "_"),
            ("debug protocol array", "*3|:0|:1|:2"),
            ("debug protocol set", "~3|:0|:1|:2"),
            ("debug protocol map", "%3|:0|#f|:1|#t|:2|#f"),
            ("debug protocol verbatim", "=29|txt:This is a verbatim\nstring"),
            ("debug protocol true", "#t"),
            ("debug protocol bignum", "(1234567999999999999999999999999999999"),
        ]);
        assert!(
            client.run_to_text("debug protocol push").ends_with(">2\r\n$16\r\nserver-cpu-usage\r\n:42\r\n")
        );
        assert!(client.run_to_text("debug protocol attrib").starts_with("|1\r\n"));
        assert!(client.run_to_text("debug protocol x").starts_with("-ERR Wrong protocol type name."));
    }
}
