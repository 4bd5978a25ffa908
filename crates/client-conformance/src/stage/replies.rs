//! Replies on the wire and in the log.

use resp::{Value, Writer};

use crate::scenario::Deed;

pub(super) fn deed_shown(deed: &Deed) -> String {
    match deed {
        Deed::Error(text) => format!("refuses: {text}"),
        Deed::Cut => "the reply breaks off in the middle, and the connection with it".to_owned(),
        Deed::Lose => "the connection ends before the reply".to_owned(),
        Deed::Silence => "the reply never comes".to_owned(),
        Deed::Late(ms) => format!("the reply comes {ms} ms late"),
        Deed::Torn => "the reply comes in pieces".to_owned(),
        Deed::Pushes => "pushes of unknown kinds come before the reply".to_owned(),
    }
}

/// A reply in a line; a long one is cut.
pub(super) fn shown_reply(reply: &Value) -> String {
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
            format!("[{}]", items.iter().map(shown_reply).collect::<Vec<_>>().join(" "))
        }
        Value::Push(items) => {
            format!("push [{}]", items.iter().map(shown_reply).collect::<Vec<_>>().join(" "))
        }
        Value::Map(pairs) => {
            let pairs =
                pairs.iter().map(|(key, value)| format!("{} {}", shown_reply(key), shown_reply(value)));
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
