//! JSON decoder.

use std::borrow::Cow;

use memchr::memchr3;
use mlua::{Either, IntoLua, Lua, Value};

use super::{JsonOptions, LibraryError, LibraryResult};
use crate::libraries::StepCounter;

/// Maximum nesting, limited by the stack size of threads.
const MAX_NESTING: usize = 2000;

/// A value to be stored in a table. UTF-8 text needs no mlua reference, and text without escapes is not copied.
type DecodedValue<'a> = Either<&'a str, Either<String, Value>>;

/// A JSON token.
enum Token<'a> {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Cow<'a, [u8]>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Invalid(&'static str),
}

impl Token<'_> {
    /// The token's name in error messages.
    fn name(&self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::Text(_) => "T_STRING",
            Self::Number(_) => "T_NUMBER",
            Self::Boolean(_) => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Invalid(what) => what,
        }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    position: usize,
    /// Position of the last token in the text, or of the error in that token.
    start: usize,
    depth: usize,
    settings: &'a JsonOptions,
    step_counter: StepCounter<'a>,
}

pub(super) fn decode(
    lua: &Lua,
    text: &[u8],
    settings: &JsonOptions,
    step_counter: StepCounter<'_>,
) -> LibraryResult<Value> {
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err("JSON parser does not support UTF-16 or UTF-32".into());
    }
    let mut parser = Parser { text, position: 0, start: 0, depth: 0, settings, step_counter };
    let first = parser.next_token();
    let value = parser.decode_value(lua, first)?;
    match parser.next_token() {
        Token::End => Ok(value.into_lua(lua)?),
        other => Err(parser.unexpected_token_error("the end", &other)),
    }
}

impl<'a> Parser<'a> {
    fn unexpected_token_error(&self, expected: &str, found: &Token<'_>) -> LibraryError {
        let (found, place) = (found.name(), self.start + 1);
        format!("Expected {expected} but found {found} at character {place}").into()
    }

    fn next_token(&mut self) -> Token<'a> {
        while matches!(self.text.get(self.position), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.position += 1;
        }
        self.start = self.position;
        let Some(&byte) = self.text.get(self.position) else { return Token::End };
        let single = match byte {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b':' => Token::Colon,
            b',' => Token::Comma,
            b'"' => return self.text_token(),
            b'-' | b'+' | b'0'..=b'9' => return self.number_token(),
            0 => return Token::End,
            _ => return self.word_token(),
        };
        self.position += 1;
        single
    }

    fn word_token(&mut self) -> Token<'a> {
        let rest = &self.text[self.position..];
        for (word, token) in
            [(&b"true"[..], Token::Boolean(true)), (b"false", Token::Boolean(false)), (b"null", Token::Null)]
        {
            if rest.starts_with(word) {
                self.position += word.len();
                return token;
            }
        }
        let special = |word: &[u8]| rest.len() >= word.len() && rest[..word.len()].eq_ignore_ascii_case(word);
        if self.settings.accepts_invalid_numbers && (special(b"inf") || special(b"nan")) {
            return self.number_token();
        }
        Token::Invalid("invalid token")
    }

    /// Parses a number like `strtod`, which accepts more than JSON does.
    fn number_token(&mut self) -> Token<'a> {
        let rest = &self.text[self.position..];
        let signed = rest.first().copied().filter(|byte| matches!(byte, b'-' | b'+'));
        let sign = usize::from(signed.is_some());
        let digits = &rest[sign..];
        if !self.settings.accepts_invalid_numbers && (signed == Some(b'+') || !is_strict_number(digits)) {
            return Token::Invalid("invalid number");
        }
        let magnitude = if digits.len() > 2 && digits[..2].eq_ignore_ascii_case(b"0x") {
            let len = digits[2..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            let value = digits[2..2 + len].iter().fold(0.0, |value, byte| {
                value * 16.0 + f64::from(char::from(*byte).to_digit(16).unwrap_or(0))
            });
            (if len == 0 { 1 } else { 2 + len }, value)
        } else if let Some((len, value)) = parse_special_number(digits) {
            (len, value)
        } else {
            parse_decimal(digits)
        };
        let (len, value) = magnitude;
        if len == 0 {
            return Token::Invalid("invalid number");
        }
        self.position += sign + len;
        Token::Number(if signed == Some(b'-') { -value } else { value })
    }

    fn text_token(&mut self) -> Token<'a> {
        self.position += 1;
        let rest = &self.text[self.position..];
        if let Some(len) = memchr3(b'"', b'\\', 0, rest)
            && rest[len] == b'"'
        {
            self.position += len + 1;
            return Token::Text(Cow::Borrowed(&rest[..len]));
        }
        let mut out = Vec::new();
        loop {
            let Some(&byte) = self.text.get(self.position) else {
                self.start = self.position;
                return Token::Invalid("unexpected end of string");
            };
            match byte {
                b'"' => {
                    self.position += 1;
                    return Token::Text(Cow::Owned(out));
                }
                0 => {
                    self.start = self.position;
                    return Token::Invalid("unexpected end of string");
                }
                b'\\' => match self.parse_escape(&mut out) {
                    Ok(()) => {}
                    Err(what) => {
                        self.start = self.position;
                        return Token::Invalid(what);
                    }
                },
                _ => {
                    let rest = &self.text[self.position..];
                    let len = memchr3(b'"', b'\\', 0, rest).unwrap_or(rest.len());
                    out.extend_from_slice(&rest[..len]);
                    self.position += len;
                }
            }
        }
    }

    /// Parses an escape sequence. If it is invalid, the position stays at the backslash.
    fn parse_escape(&mut self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        let rest = &self.text[self.position + 1..];
        let plain = match rest.first() {
            Some(b'"') => b'"',
            Some(b'\\') => b'\\',
            Some(b'/') => b'/',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                let (code, len) = decode_code_point(rest).ok_or("invalid unicode escape code")?;
                out.extend_from_slice(code.encode_utf8(&mut [0; 4]).as_bytes());
                self.position += 1 + len;
                return Ok(());
            }
            _ => return Err("invalid escape code"),
        };
        out.push(plain);
        self.position += 2;
        Ok(())
    }

    fn decode_value(&mut self, lua: &Lua, token: Token<'a>) -> LibraryResult<DecodedValue<'a>> {
        self.step_counter.step(0, 0)?;
        Ok(Either::Right(Either::Right(match token {
            Token::Text(text) => return text_value(lua, text),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(value) => Value::Boolean(value),
            Token::Null => Value::NULL,
            Token::ObjectBegin => self.decode_object(lua)?,
            Token::ArrayBegin => self.decode_array(lua)?,
            other => return Err(self.unexpected_token_error("value", &other)),
        })))
    }

    fn enter_nesting(&mut self) -> LibraryResult<()> {
        self.depth += 1;
        if self.depth > self.settings.max_decode_depth.min(MAX_NESTING) {
            let (depth, place) = (self.depth, self.position);
            let text = format!("Found too many nested data structures ({depth}) at character {place}");
            return Err(text.into());
        }
        Ok(())
    }

    fn decode_object(&mut self, lua: &Lua) -> LibraryResult<Value> {
        self.enter_nesting()?;
        let table = lua.create_table()?;
        let mut token = self.next_token();
        if !matches!(token, Token::ObjectEnd) {
            loop {
                let Token::Text(key) = token else {
                    return Err(self.unexpected_token_error("object key string", &token));
                };
                match self.next_token() {
                    Token::Colon => {}
                    other => return Err(self.unexpected_token_error("colon", &other)),
                }
                let token_of_value = self.next_token();
                let value = self.decode_value(lua, token_of_value)?;
                table.raw_set(text_value(lua, key)?, value)?;
                match self.next_token() {
                    Token::ObjectEnd => break,
                    Token::Comma => token = self.next_token(),
                    other => return Err(self.unexpected_token_error("comma or object end", &other)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }

    fn decode_array(&mut self, lua: &Lua) -> LibraryResult<Value> {
        self.enter_nesting()?;
        let table = lua.create_table()?;
        let mut token = self.next_token();
        if !matches!(token, Token::ArrayEnd) {
            for index in 1.. {
                let value = self.decode_value(lua, token)?;
                table.raw_seti(index, value)?;
                match self.next_token() {
                    Token::ArrayEnd => break,
                    Token::Comma => token = self.next_token(),
                    other => return Err(self.unexpected_token_error("comma or array end", &other)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }
}

fn text_value<'a>(lua: &Lua, text: Cow<'a, [u8]>) -> LibraryResult<DecodedValue<'a>> {
    let text = match text {
        Cow::Borrowed(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => return Ok(Either::Left(text)),
            Err(_) => lua.create_string(bytes)?,
        },
        Cow::Owned(bytes) => match String::from_utf8(bytes) {
            Ok(text) => return Ok(Either::Right(Either::Left(text))),
            Err(other) => lua.create_string(other.as_bytes())?,
        },
    };
    Ok(Either::Right(Either::Right(Value::String(text))))
}

/// Whether `digits` is a number in strict JSON syntax.
fn is_strict_number(digits: &[u8]) -> bool {
    match digits {
        [b'0', next, ..] => !matches!(next, b'0'..=b'9' | b'x' | b'X'),
        [first, ..] => first.is_ascii_digit(),
        [] => false,
    }
}

fn parse_special_number(digits: &[u8]) -> Option<(usize, f64)> {
    let words: [(&[u8], f64); 3] =
        [(b"infinity", f64::INFINITY), (b"inf", f64::INFINITY), (b"nan", f64::NAN)];
    let is = |word: &[u8]| digits.len() >= word.len() && digits[..word.len()].eq_ignore_ascii_case(word);
    words.into_iter().find(|(word, _)| is(word)).map(|(word, value)| (word.len(), value))
}

/// Parses the number at the start of `digits`. Returns its length (0 if there is none) and its value.
fn parse_decimal(digits: &[u8]) -> (usize, f64) {
    let count = |from: usize| digits[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = count(0);
    let mut len = whole;
    if digits.get(len) == Some(&b'.') {
        let fraction = count(len + 1);
        if whole + fraction > 0 {
            len += 1 + fraction;
        }
    }
    if len == 0 {
        return (0, 0.0);
    }
    if matches!(digits.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(digits.get(len + 1), Some(b'+' | b'-')));
        let exponent = if len + 1 + sign <= digits.len() { count(len + 1 + sign) } else { 0 };
        if exponent > 0 {
            len += 1 + sign + exponent;
        }
    }
    let text = std::str::from_utf8(&digits[..len]).unwrap_or_default();
    (len, text.trim_end_matches('.').parse().unwrap_or(0.0))
}

/// Decodes `u` and four hex digits, or two such escapes that form a surrogate pair. Returns the character and the
/// number of bytes read.
fn decode_code_point(rest: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = rest.get(at..at + 4)?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let first = unit(1)?;
    if !(0xd800..0xe000).contains(&first) {
        return char::from_u32(first).map(|code| (code, 5));
    }
    if first >= 0xdc00 || rest.get(5..7) != Some(b"\\u") {
        return None;
    }
    let second = unit(7).filter(|second| (0xdc00..0xe000).contains(second))?;
    char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).map(|code| (code, 11))
}
