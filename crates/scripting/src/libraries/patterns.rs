//! Lua patterns: `string.find`, `match`, `gmatch` and `gsub`.
//!
//! Lua's own matcher recurses on the C stack in proportion to the pattern's length and cannot be interrupted. This one
//! has the same semantics (section 5.4.1 of the Lua manual) with a limit on nested choices and a periodic check whether
//! the script must stop.

use mlua::{Function, Lua, LuaString, Table, Value};

use super::{Arguments, LibraryError, LibraryResult, argument_error, create_function, type_name};
use crate::number::format_g;

/// Maximum number of captures in a pattern, as in Lua.
const MAX_CAPTURES: usize = 32;
/// Maximum number of nested choices that are still open. Lua 5.2 and later have the same limit.
const MAX_OPEN_CHOICES: usize = 200;
/// Number of steps between two checks whether the script must stop; they take some milliseconds.
const STEPS_PER_CHECK: u32 = 1_000_000;

/// The length of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CaptureLength {
    /// The capture is not closed yet.
    Open,
    /// The capture is a position capture (`()`), which has no length.
    Position,
    Closed(usize),
}

/// One attempt to match a pattern.
struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<(usize, CaptureLength)>,
    depth: usize,
    steps: u32,
    lua: &'a Lua,
    check_hook: &'a Function,
}

fn belongs_to_class(byte: u8, class: u8) -> bool {
    let holds = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    holds != class.is_ascii_uppercase()
}

impl<'a> Matcher<'a> {
    fn new(lua: &'a Lua, check_hook: &'a Function, text: &'a [u8], pattern: &'a [u8]) -> Self {
        Self { text, pattern, captures: Vec::new(), depth: 0, steps: 0, lua, check_hook }
    }

    fn pattern_byte(&self, pattern_pos: usize) -> Option<u8> {
        self.pattern.get(pattern_pos).copied()
    }

    fn step(&mut self) -> LibraryResult<()> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHECK) {
            self.check_hook.call::<()>(())?;
        }
        Ok(())
    }

    /// The end of the pattern item that begins at `pattern_pos`: a character, a class or a set.
    fn item_end(&self, pattern_pos: usize) -> LibraryResult<usize> {
        match self.pattern[pattern_pos] {
            b'%' if pattern_pos + 1 == self.pattern.len() => Err("malformed pattern (ends with '%')".into()),
            b'%' => Ok(pattern_pos + 2),
            b'[' => {
                let mut next =
                    pattern_pos + 1 + usize::from(self.pattern_byte(pattern_pos + 1) == Some(b'^'));
                loop {
                    let byte = self.pattern_byte(next).ok_or("malformed pattern (missing ']')")?;
                    next += 1;
                    if byte == b'%' {
                        next += 1;
                    }
                    if self.pattern_byte(next) == Some(b']') {
                        return Ok(next + 1);
                    }
                }
            }
            _ => Ok(pattern_pos + 1),
        }
    }

    /// Whether `byte` is in the set that extends from `set_start` to the bracket at `set_end`.
    fn is_in_set(&self, byte: u8, set_start: usize, set_end: usize) -> bool {
        let negated = self.pattern[set_start + 1] == b'^';
        let mut next = set_start + 1 + usize::from(negated);
        while next < set_end {
            if self.pattern[next] == b'%' {
                if belongs_to_class(byte, self.pattern[next + 1]) {
                    return !negated;
                }
                next += 2;
            } else if self.pattern_byte(next + 1) == Some(b'-') && next + 2 < set_end {
                if (self.pattern[next]..=self.pattern[next + 2]).contains(&byte) {
                    return !negated;
                }
                next += 3;
            } else {
                if self.pattern[next] == byte {
                    return !negated;
                }
                next += 1;
            }
        }
        negated
    }

    /// Whether the character at `text_pos` matches the item from `pattern_pos` to `end`.
    fn matches_item(&self, text_pos: usize, pattern_pos: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(text_pos) else { return false };
        match self.pattern[pattern_pos] {
            b'.' => true,
            b'%' => belongs_to_class(byte, self.pattern[pattern_pos + 1]),
            b'[' => self.is_in_set(byte, pattern_pos, end - 1),
            letter => letter == byte,
        }
    }

    /// Matches the rest of the pattern, from `pattern_pos`, against the text at `text_pos`. Returns the end of the
    /// match.
    fn match_rest(&mut self, text_pos: usize, pattern_pos: usize) -> LibraryResult<Option<usize>> {
        if self.depth == MAX_OPEN_CHOICES {
            return Err("pattern too complex".into());
        }
        self.depth += 1;
        let end = self.match_items(text_pos, pattern_pos);
        self.depth -= 1;
        end
    }

    /// Like [`Matcher::match_rest`], but matches items without choices iteratively.
    fn match_items(&mut self, mut text_pos: usize, mut pattern_pos: usize) -> LibraryResult<Option<usize>> {
        loop {
            self.step()?;
            let Some(byte) = self.pattern_byte(pattern_pos) else { return Ok(Some(text_pos)) };
            match byte {
                b'(' if self.pattern_byte(pattern_pos + 1) == Some(b')') => {
                    return self.open_capture(text_pos, pattern_pos + 2, CaptureLength::Position);
                }
                b'(' => return self.open_capture(text_pos, pattern_pos + 1, CaptureLength::Open),
                b')' => return self.close_capture(text_pos, pattern_pos + 1),
                b'$' if pattern_pos + 1 == self.pattern.len() => {
                    return Ok((text_pos == self.text.len()).then_some(text_pos));
                }
                b'%' if self.pattern_byte(pattern_pos + 1) == Some(b'b') => {
                    let Some(end) = self.match_balanced(text_pos, pattern_pos + 2)? else { return Ok(None) };
                    (text_pos, pattern_pos) = (end, pattern_pos + 4);
                }
                b'%' if self.pattern_byte(pattern_pos + 1) == Some(b'f') => {
                    let Some(next) = self.match_frontier(text_pos, pattern_pos + 2)? else { return Ok(None) };
                    pattern_pos = next;
                }
                b'%' if self.pattern_byte(pattern_pos + 1).is_some_and(|byte| byte.is_ascii_digit()) => {
                    let Some(end) = self.match_back_reference(text_pos, self.pattern[pattern_pos + 1])?
                    else {
                        return Ok(None);
                    };
                    (text_pos, pattern_pos) = (end, pattern_pos + 2);
                }
                _ => {
                    let end = self.item_end(pattern_pos)?;
                    match self.pattern_byte(end) {
                        Some(b'?') => {
                            if self.matches_item(text_pos, pattern_pos, end)
                                && let Some(found) = self.match_rest(text_pos + 1, end + 1)?
                            {
                                return Ok(Some(found));
                            }
                            pattern_pos = end + 1;
                        }
                        Some(b'*') => return self.match_greedy(text_pos, pattern_pos, end, 0),
                        Some(b'+') => return self.match_greedy(text_pos, pattern_pos, end, 1),
                        Some(b'-') => return self.match_lazy(text_pos, pattern_pos, end),
                        _ if !self.matches_item(text_pos, pattern_pos, end) => return Ok(None),
                        _ => (text_pos, pattern_pos) = (text_pos + 1, end),
                    }
                }
            }
        }
    }

    fn match_greedy(
        &mut self,
        text_pos: usize,
        pattern_pos: usize,
        end: usize,
        min_count: usize,
    ) -> LibraryResult<Option<usize>> {
        let mut count = 0;
        while self.matches_item(text_pos + count, pattern_pos, end) {
            count += 1;
            self.step()?;
        }
        while count >= min_count {
            if let Some(found) = self.match_rest(text_pos + count, end + 1)? {
                return Ok(Some(found));
            }
            let Some(fewer) = count.checked_sub(1) else { break };
            count = fewer;
        }
        Ok(None)
    }

    fn match_lazy(
        &mut self,
        mut text_pos: usize,
        pattern_pos: usize,
        end: usize,
    ) -> LibraryResult<Option<usize>> {
        loop {
            if let Some(found) = self.match_rest(text_pos, end + 1)? {
                return Ok(Some(found));
            }
            if !self.matches_item(text_pos, pattern_pos, end) {
                return Ok(None);
            }
            text_pos += 1;
        }
    }

    fn open_capture(
        &mut self,
        text_pos: usize,
        pattern_pos: usize,
        length: CaptureLength,
    ) -> LibraryResult<Option<usize>> {
        if self.captures.len() >= MAX_CAPTURES {
            return Err("too many captures".into());
        }
        let level = self.captures.len();
        self.captures.push((text_pos, length));
        let found = self.match_rest(text_pos, pattern_pos)?;
        if found.is_none() {
            self.captures.truncate(level);
        }
        Ok(found)
    }

    fn close_capture(&mut self, text_pos: usize, pattern_pos: usize) -> LibraryResult<Option<usize>> {
        let level = self.captures.iter().rposition(|(_, length)| *length == CaptureLength::Open);
        let level = level.ok_or("invalid pattern capture")?;
        self.captures[level].1 = CaptureLength::Closed(text_pos - self.captures[level].0);
        let found = self.match_rest(text_pos, pattern_pos)?;
        if found.is_none() {
            self.captures[level].1 = CaptureLength::Open;
        }
        Ok(found)
    }

    /// Matches `%bxy`, a range in which `x` and `y` are balanced. Returns the end of the range.
    fn match_balanced(&mut self, text_pos: usize, pattern_pos: usize) -> LibraryResult<Option<usize>> {
        let (Some(first), Some(last)) = (self.pattern_byte(pattern_pos), self.pattern_byte(pattern_pos + 1))
        else {
            return Err("unbalanced pattern".into());
        };
        if self.text.get(text_pos) != Some(&first) {
            return Ok(None);
        }
        let mut open = 1;
        for next in text_pos + 1..self.text.len() {
            self.step()?;
            if self.text[next] == last {
                open -= 1;
                if open == 0 {
                    return Ok(Some(next + 1));
                }
            } else if self.text[next] == first {
                open += 1;
            }
        }
        Ok(None)
    }

    /// Matches `%f[set]`, a frontier. Returns the next pattern position if the text at `text_pos` is a transition into
    /// the set.
    fn match_frontier(&self, text_pos: usize, pattern_pos: usize) -> LibraryResult<Option<usize>> {
        if self.pattern_byte(pattern_pos) != Some(b'[') {
            return Err("missing '[' after '%f' in pattern".into());
        }
        let end = self.item_end(pattern_pos)?;
        let before = if text_pos == 0 { 0 } else { self.text[text_pos - 1] };
        let here = self.text.get(text_pos).copied().unwrap_or(0);
        let crosses =
            !self.is_in_set(before, pattern_pos, end - 1) && self.is_in_set(here, pattern_pos, end - 1);
        Ok(crosses.then_some(end))
    }

    /// Matches `%1` to `%9`, a back reference to a capture. Returns the end of the match.
    fn match_back_reference(&self, text_pos: usize, digit: u8) -> LibraryResult<Option<usize>> {
        let level = usize::from(digit).checked_sub(usize::from(b'1'));
        let captured = level.and_then(|level| self.captures.get(level).copied());
        let Some((start, length)) = captured.filter(|(_, length)| *length != CaptureLength::Open) else {
            return Err("invalid capture index".into());
        };
        let CaptureLength::Closed(length) = length else { return Ok(None) };
        let found = self.text[text_pos..].starts_with(&self.text[start..start + length]);
        Ok(found.then_some(text_pos + length))
    }

    /// Capture `level` as a Lua value, or the whole match if there are no captures.
    fn capture(&self, level: usize, start: usize, end: usize) -> LibraryResult<Value> {
        let (from, to) = match self.captures.get(level) {
            None if level == 0 => (start, end),
            None => return Err("invalid capture index".into()),
            Some((_, CaptureLength::Open)) => return Err("unfinished capture".into()),
            Some((from, CaptureLength::Position)) => return Ok(Value::Number((from + 1) as f64)),
            Some((from, CaptureLength::Closed(length))) => (*from, from + length),
        };
        Ok(Value::String(self.lua.create_string(&self.text[from..to])?))
    }

    fn collect_captures(&self, start: usize, end: usize, whole: bool) -> LibraryResult<Vec<Value>> {
        let count = if self.captures.is_empty() && whole { 1 } else { self.captures.len() };
        (0..count).map(|level| self.capture(level, start, end)).collect()
    }

    /// The start and end of the first match at or after `text_pos`.
    fn find_first(&mut self, mut text_pos: usize) -> LibraryResult<Option<(usize, usize)>> {
        let anchored = self.pattern.first() == Some(&b'^');
        loop {
            if let Some(end) = self.match_at_position(text_pos, usize::from(anchored))? {
                return Ok(Some((text_pos, end)));
            }
            text_pos += 1;
            if anchored || text_pos > self.text.len() {
                return Ok(None);
            }
        }
    }

    fn match_at_position(&mut self, text_pos: usize, pattern_pos: usize) -> LibraryResult<Option<usize>> {
        self.captures.clear();
        self.match_rest(text_pos, pattern_pos)
    }
}

/// Resolves `init` of `find` and `match`, which counts from the end if negative.
fn start_index(init: f64, length: usize) -> usize {
    let init = if init < 0.0 { init.trunc() + length as f64 } else { init.trunc() - 1.0 };
    (init.max(0.0) as usize).min(length)
}

/// The text and the pattern that a script passed to a pattern function.
struct PatternArguments {
    text: LuaString,
    pattern: LuaString,
}

impl PatternArguments {
    fn from_arguments(lua: &Lua, args: &Arguments, name: &str) -> LibraryResult<Self> {
        let string = |index| match args.value(index) {
            Value::String(text) => Ok(text.clone()),
            _ => Ok::<_, LibraryError>(lua.create_string(args.text(index, name)?)?),
        };
        Ok(Self { text: string(1)?, pattern: string(2)? })
    }
}

fn search(
    lua: &Lua,
    check_hook: &Function,
    args: &Arguments,
    is_find: bool,
) -> LibraryResult<mlua::MultiValue> {
    let name = if is_find { "find" } else { "match" };
    let subject = PatternArguments::from_arguments(lua, args, name)?;
    let (text, pattern) = (subject.text.as_bytes(), subject.pattern.as_bytes());
    let start = start_index(args.optional_number(3, name, 1.0)?, text.len());
    let numbers = |from: usize, to: usize| [from as f64 + 1.0, to as f64].map(Value::Number);
    let is_plain = || {
        !matches!(args.value(4), Value::Nil | Value::Boolean(false))
            || !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
    };
    if is_find && is_plain() {
        let found = memchr::memmem::find(&text[start..], &pattern);
        return Ok(match found.map(|found| start + found) {
            Some(from) => numbers(from, from + pattern.len()).into_iter().collect(),
            None => [Value::Nil].into_iter().collect(),
        });
    }
    let mut matcher = Matcher::new(lua, check_hook, &text, &pattern);
    let Some((from, end)) = matcher.find_first(start)? else { return Ok([Value::Nil].into_iter().collect()) };
    let captures = matcher.collect_captures(from, end, !is_find)?;
    let places = if is_find { numbers(from, end).to_vec() } else { Vec::new() };
    Ok(places.into_iter().chain(captures).collect())
}

/// Creates the iterator of `gmatch`.
fn each_match(lua: &Lua, check_hook: &Function, args: &Arguments) -> LibraryResult<Function> {
    let subject = PatternArguments::from_arguments(lua, args, "gmatch")?;
    let (place, look) = (std::cell::Cell::new(0), check_hook.clone());
    Ok(create_function(lua, move |lua, _| -> LibraryResult<mlua::MultiValue> {
        let (text, pattern) = (subject.text.as_bytes(), subject.pattern.as_bytes());
        let mut matcher = Matcher::new(lua, &look, &text, &pattern);
        for from in place.get()..=text.len() {
            if let Some(end) = matcher.match_at_position(from, 0)? {
                place.set(if end == from { end + 1 } else { end });
                return Ok(matcher.collect_captures(from, end, true)?.into_iter().collect());
            }
        }
        place.set(text.len() + 1);
        Ok([Value::Nil].into_iter().collect())
    })?)
}

/// Used by the prelude for `gsub` with a function. Returns the end and the captures of a match that begins exactly at a
/// position (counted from 0), or nothing.
fn match_at(lua: &Lua, check_hook: &Function, args: &Arguments) -> LibraryResult<mlua::MultiValue> {
    let subject = PatternArguments::from_arguments(lua, args, "gsub")?;
    let (text, pattern) = (subject.text.as_bytes(), subject.pattern.as_bytes());
    let from = (args.number(3, "gsub")? as usize).min(text.len());
    let mut matcher = Matcher::new(lua, check_hook, &text, &pattern);
    let Some(end) = matcher.match_at_position(from, usize::from(pattern.first() == Some(&b'^')))? else {
        return Ok([Value::Nil].into_iter().collect());
    };
    let captures = matcher.collect_captures(from, end, true)?;
    Ok(std::iter::once(Value::Number(end as f64)).chain(captures).collect())
}

/// The replacement text of `gsub` for a match.
fn replacement_text(
    matcher: &Matcher<'_>,
    replacement: &Value,
    start: usize,
    end: usize,
) -> LibraryResult<Vec<u8>> {
    let found = match replacement {
        Value::Table(table) => table.get::<Value>(matcher.capture(0, start, end)?)?,
        with => return expand_replacement(matcher, &plain_text(with).unwrap_or_default(), start, end),
    };
    match &found {
        Value::Nil | Value::Boolean(false) => Ok(matcher.text[start..end].to_vec()),
        value => plain_text(value).ok_or_else(|| {
            LibraryError::Script(format!("invalid replacement value (a {})", type_name(value)))
        }),
    }
}

fn plain_text(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(format_g(*number as f64, 14).into_bytes()),
        Value::Number(number) => Some(format_g(*number, 14).into_bytes()),
        _ => None,
    }
}

/// Expands `%0` to `%9` in a replacement text.
fn expand_replacement(
    matcher: &Matcher<'_>,
    text: &[u8],
    start: usize,
    end: usize,
) -> LibraryResult<Vec<u8>> {
    let mut made = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, (byte == b'%').then(|| bytes.next())) {
            (_, None) => made.push(byte),
            (_, Some(Some(b'0'))) => made.extend_from_slice(&matcher.text[start..end]),
            (_, Some(Some(digit @ b'1'..=b'9'))) => {
                let value = matcher.capture(usize::from(digit - b'1'), start, end)?;
                made.extend(plain_text(&value).unwrap_or_default());
            }
            // As in Lua 5.1, `%` before any other character stands for that character.
            (_, Some(next)) => made.push(next.unwrap_or(0)),
        }
    }
    Ok(made)
}

fn substitute(lua: &Lua, check_hook: &Function, args: &Arguments) -> LibraryResult<(LuaString, f64)> {
    let subject = PatternArguments::from_arguments(lua, args, "gsub")?;
    let with = args.value(3);
    if !matches!(with, Value::String(_) | Value::Integer(_) | Value::Number(_) | Value::Table(_)) {
        return Err(argument_error(3, "gsub", "string/function/table expected"));
    }
    let (text, pattern) = (subject.text.as_bytes(), subject.pattern.as_bytes());
    let most = args.optional_number(4, "gsub", (text.len() + 1) as f64)?.trunc();
    let anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(lua, check_hook, &text, &pattern);
    let (mut from, mut count, mut made) = (0, 0.0, Vec::new());
    while count < most {
        let found = matcher.match_at_position(from, usize::from(anchored))?;
        if let Some(end) = found {
            count += 1.0;
            made.extend(replacement_text(&matcher, with, from, end)?);
            if made.len() > super::MAX_STRING_BYTES {
                return Err("resulting string too large".into());
            }
        }
        match found {
            Some(end) if end > from => from = end,
            _ if from < text.len() => {
                made.push(text[from]);
                from += 1;
            }
            _ => break,
        }
        if anchored {
            break;
        }
    }
    made.extend_from_slice(text.get(from..).unwrap_or_default());
    Ok((lua.create_string(made)?, count))
}

/// Adds the pattern functions to `table`. `check_hook` is a function that raises an error if the script must stop.
pub(super) fn register_functions(table: &Table, lua: &Lua, check_hook: &Function) -> mlua::Result<()> {
    let ask = check_hook.clone();
    table.set("find", create_function(lua, move |lua, args| search(lua, &ask, args, true))?)?;
    let ask = check_hook.clone();
    table.set("match", create_function(lua, move |lua, args| search(lua, &ask, args, false))?)?;
    let ask = check_hook.clone();
    let gmatch = create_function(lua, move |lua, args| each_match(lua, &ask, args))?;
    table.set("gmatch", &gmatch)?;
    table.set("gfind", gmatch)?;
    let ask = check_hook.clone();
    table.set("match_at", create_function(lua, move |lua, args| match_at(lua, &ask, args))?)?;
    let ask = check_hook.clone();
    table.set("gsub", create_function(lua, move |lua, args| substitute(lua, &ask, args))?)
}
