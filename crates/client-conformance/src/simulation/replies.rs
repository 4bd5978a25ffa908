//! Encodes replies for the wire and for the log.

use resp::{Value, Writer};

use crate::scenario::ReplyFault;

pub(super) fn describe_fault(fault: &ReplyFault) -> String {
    match fault {
        ReplyFault::Error(text) => format!("refuses: {text}"),
        ReplyFault::CutReply => "the reply breaks off in the middle, and the connection with it".to_owned(),
        ReplyFault::DropReply => "the connection ends before the reply".to_owned(),
        ReplyFault::NoReply => "the reply never comes".to_owned(),
        ReplyFault::Delay(ms) => format!("the reply comes {ms} ms late"),
        ReplyFault::Fragment => "the reply comes in pieces".to_owned(),
        ReplyFault::UnknownPushes => "pushes of unknown kinds come before the reply".to_owned(),
    }
}

/// Formats a reply on one line, truncated if long.
pub(super) fn format_reply(reply: &Value) -> String {
    let text = match reply {
        Value::Null => "(nil)".to_owned(),
        Value::Simple(text) => format!("+{text}"),
        Value::Error(text) => format!("-{text}"),
        Value::Integer(number) => format!(":{number}"),
        Value::Bulk(bytes) | Value::Verbatim(_, bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Double(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        Value::BigNumber(digits) => digits.clone(),
        Value::Array(items) | Value::Set(items) => {
            format!("[{}]", items.iter().map(format_reply).collect::<Vec<_>>().join(" "))
        }
        Value::Push(items) => {
            format!("push [{}]", items.iter().map(format_reply).collect::<Vec<_>>().join(" "))
        }
        Value::Map(pairs) => {
            let pairs =
                pairs.iter().map(|(key, value)| format!("{} {}", format_reply(key), format_reply(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
        }
    };
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

pub(super) fn encode(out: &mut Writer<'_>, reply: &Value) {
    match reply {
        Value::Null => out.null(),
        Value::Simple(text) => out.simple(text),
        Value::Error(text) => out.error(text),
        Value::Integer(number) => out.integer(*number),
        Value::Double(number) => out.double(*number),
        Value::Boolean(truth) => out.boolean(*truth),
        Value::BigNumber(digits) => out.bulk(digits.as_bytes()),
        Value::Bulk(bytes) | Value::Verbatim(_, bytes) => out.bulk(bytes),
        Value::Array(items) => {
            out.array(items.len());
            items.iter().for_each(|item| encode(out, item));
        }
        Value::Set(items) => {
            out.set(items.len());
            items.iter().for_each(|item| encode(out, item));
        }
        Value::Push(items) => {
            out.push(items.len());
            items.iter().for_each(|item| encode(out, item));
        }
        Value::Map(pairs) => {
            out.map(pairs.len());
            for (key, value) in pairs {
                encode(out, key);
                encode(out, value);
            }
        }
    }
}
