//! Instruments a script so that the debugger can read its local variables.
//!
//! Lua exposes locals only through functions that are not safe to call. The script is therefore rewritten: before its
//! statements and after each `local`, it calls the debugger with a closure that returns all variables in scope. Line
//! numbers stay the same. At the end of a block with reported locals, Lua has one more instruction, so the debugger may
//! stop there once more than in Redis. A script that cannot be parsed, or that would exceed Lua's limits with the
//! inserted calls, is left unchanged, and its locals are not shown.

use std::collections::HashSet;

/// The name under which the inserted calls find the debugger's function.
pub(super) const SCOPE_HOOK: &str = "__ldb";
/// Maximum number of reported variables of the innermost function, and of the enclosing functions together. A Lua
/// function can have at most 60 upvalues.
const MAX_OWN_VARIABLES: usize = 30;
const MAX_OUTER_VARIABLES: usize = 20;
/// Maximum nesting of statements and expressions; Lua's own limit is 200.
const MAX_DEPTH: usize = 180;

/// An instrumented script.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InstrumentedScript {
    pub(super) text: Vec<u8>,
    /// Lines that begin with an inserted call.
    pub(super) scope_report_lines: HashSet<usize>,
}

/// The script is not valid Lua, or exceeds a limit of this parser or of Lua.
#[derive(Debug)]
pub(super) struct InvalidLua;

type ParseResult<T = ()> = Result<T, InvalidLua>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Name,
    Keyword,
    Text,
    Number,
    Symbol,
    End,
}

#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    kind: TokenKind,
    text: &'a [u8],
    start: usize,
    line: usize,
    /// Whether the token is the first token of its line.
    is_first_of_line: bool,
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];
const BINARY_OPERATORS: [&str; 15] =
    ["+", "-", "*", "/", "^", "%", "..", "<", "<=", ">", ">=", "==", "~=", "and", "or"];

/// Instruments a script, whose shebang may already be removed from the first line.
pub(super) fn instrument(text: &[u8]) -> ParseResult<InstrumentedScript> {
    let tokens = tokenize(text)?;
    let mut parser = Parser {
        tokens,
        position: 0,
        depth: 0,
        locals: vec![Vec::new()],
        inserted_calls: Vec::new(),
        scope_report_lines: HashSet::new(),
    };
    parser.parse_block()?;
    if parser.current().kind != TokenKind::End {
        return Err(InvalidLua);
    }
    let mut changed = Vec::with_capacity(text.len() * 2);
    let mut from = 0;
    for (place, call) in &parser.inserted_calls {
        changed.extend_from_slice(&text[from..*place]);
        changed.extend_from_slice(call);
        from = *place;
    }
    changed.extend_from_slice(&text[from..]);
    Ok(InstrumentedScript { text: changed, scope_report_lines: parser.scope_report_lines })
}

/// If a long bracket (`[[...]]`, `[=[...]=]` and so on) starts at `start`, returns its end.
fn long_bracket_end(text: &[u8], start: usize) -> Option<ParseResult<usize>> {
    let level = text[start + 1..].iter().take_while(|byte| **byte == b'=').count();
    if text.get(start + 1 + level) != Some(&b'[') {
        return None;
    }
    let mut close = vec![b'='; level + 2];
    (close[0], close[level + 1]) = (b']', b']');
    let body = start + level + 2;
    let end = memchr::memmem::find(&text[body..], &close);
    Some(end.map(|end| body + end + close.len()).ok_or(InvalidLua))
}

/// Returns the end of the quoted string that starts at `start`.
fn quoted_string_end(text: &[u8], start: usize) -> ParseResult<usize> {
    let mut at = start + 1;
    loop {
        match text.get(at) {
            None | Some(b'\n') => return Err(InvalidLua),
            Some(b'\\') => at += 2,
            Some(byte) if *byte == text[start] => return Ok(at + 1),
            Some(_) => at += 1,
        }
    }
}

/// Returns the end of the comment that starts at `start`.
fn comment_end(text: &[u8], start: usize) -> ParseResult<usize> {
    if text.get(start + 2) == Some(&b'[')
        && let Some(end) = long_bracket_end(text, start + 2)
    {
        return end;
    }
    Ok(text[start..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| start + end))
}

fn tokenize(text: &[u8]) -> ParseResult<Vec<Token<'_>>> {
    let (mut tokens, mut at, mut line, mut first) = (Vec::new(), 0, 1, true);
    while at < text.len() {
        let byte = text[at];
        let rest = &text[at..];
        let (kind, end) = match byte {
            b'\n' => {
                (line, first, at) = (line + 1, true, at + 1);
                continue;
            }
            _ if byte.is_ascii_whitespace() || byte == 0x0b => {
                at += 1;
                continue;
            }
            b'-' if rest.starts_with(b"--") => {
                let end = comment_end(text, at)?;
                line += text[at..end].iter().filter(|byte| **byte == b'\n').count();
                at = end;
                continue;
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let len =
                    rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
                let keyword = KEYWORDS.iter().any(|word| word.as_bytes() == &rest[..len]);
                (if keyword { TokenKind::Keyword } else { TokenKind::Name }, at + len)
            }
            b'0'..=b'9' => (TokenKind::Number, at + number_len(rest)),
            b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => (TokenKind::Number, at + number_len(rest)),
            b'"' | b'\'' => (TokenKind::Text, quoted_string_end(text, at)?),
            b'[' => match long_bracket_end(text, at) {
                Some(end) => (TokenKind::Text, end?),
                None => (TokenKind::Symbol, at + 1),
            },
            _ => {
                let long = ["...", "..", "==", "~=", "<=", ">="]
                    .iter()
                    .find(|sign| rest.starts_with(sign.as_bytes()));
                (TokenKind::Symbol, at + long.map_or(1, |sign| sign.len()))
            }
        };
        tokens.push(Token { kind, text: &text[at..end], start: at, line, is_first_of_line: first });
        line += text[at..end].iter().filter(|byte| **byte == b'\n').count();
        (at, first) = (end, false);
    }
    tokens.push(Token { kind: TokenKind::End, text: b"", start: text.len(), line, is_first_of_line: first });
    Ok(tokens)
}

/// The length of a number token.
fn number_len(text: &[u8]) -> usize {
    let mut len = 0;
    while let Some(&byte) = text.get(len) {
        let sign = matches!(byte, b'+' | b'-') && matches!(text[len.saturating_sub(1)], b'e' | b'E');
        if !(byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' || sign) {
            break;
        }
        len += 1;
    }
    len
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    position: usize,
    depth: usize,
    /// The local names in scope per function, innermost last.
    locals: Vec<Vec<&'a [u8]>>,
    /// The calls to insert and their positions in the text.
    inserted_calls: Vec<(usize, Vec<u8>)>,
    scope_report_lines: HashSet<usize>,
}

impl<'a> Parser<'a> {
    fn current(&self) -> Token<'a> {
        self.tokens[self.position]
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.current();
        self.position = (self.position + 1).min(self.tokens.len() - 1);
        token
    }

    fn next_token_is(&self, word: &str) -> bool {
        matches!(self.current().kind, TokenKind::Keyword | TokenKind::Symbol)
            && self.current().text == word.as_bytes()
    }

    fn skip(&mut self, word: &str) -> bool {
        let is = self.next_token_is(word);
        if is {
            self.next();
        }
        is
    }

    fn expect(&mut self, word: &str) -> ParseResult {
        if self.skip(word) { Ok(()) } else { Err(InvalidLua) }
    }

    fn expect_name(&mut self) -> ParseResult<&'a [u8]> {
        if self.current().kind == TokenKind::Name { Ok(self.next().text) } else { Err(InvalidLua) }
    }

    fn current_function_variables(&mut self) -> &mut Vec<&'a [u8]> {
        self.locals.last_mut().expect("the script's own are always there")
    }

    /// Inserts a call at this text position that reports the variables in scope.
    fn insert_call(&mut self, position: usize) {
        let (own, outer) = self.locals.split_last().expect("the script's own are always there");
        let own = &own[own.len().saturating_sub(MAX_OWN_VARIABLES)..];
        let outer: Vec<&[u8]> = outer.iter().flatten().copied().collect();
        let outer = &outer[outer.len().saturating_sub(MAX_OUTER_VARIABLES)..];
        let mut call = format!(" {SCOPE_HOOK}(function()return {}", own.len()).into_bytes();
        for name in own.iter().chain(outer) {
            call.extend_from_slice(b",\"");
            call.extend_from_slice(name);
            call.extend_from_slice(b"\",");
            call.extend_from_slice(name);
        }
        call.extend_from_slice(b" end); ");
        self.inserted_calls.push((position, call));
    }

    fn parse_block(&mut self) -> ParseResult {
        self.parse_nested(|this| {
            let known = this.current_function_variables().len();
            let mut first = true;
            loop {
                let token = this.current();
                let ends = token.kind == TokenKind::End
                    || ["else", "elseif", "end", "until"].iter().any(|word| this.next_token_is(word));
                if ends {
                    break;
                }
                // Skip loops, which return to their first line, and functions, whose closure instruction is on their
                // last line.
                let loops =
                    ["for", "while", "repeat", "function"].iter().any(|word| this.next_token_is(word));
                let is_function =
                    this.next_token_is("local") && this.tokens[this.position + 1].text == b"function";
                let any = this.locals.iter().any(|names| !names.is_empty());
                if first && any || !loops && !is_function {
                    this.insert_call(token.start);
                    if token.is_first_of_line {
                        this.scope_report_lines.insert(token.line);
                    }
                }
                first = false;
                if this.parse_statement()? {
                    break;
                }
            }
            this.current_function_variables().truncate(known);
            Ok(())
        })
    }

    fn parse_nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        if self.depth >= MAX_DEPTH {
            return Err(InvalidLua);
        }
        self.depth += 1;
        let outcome = parse(self);
        self.depth -= 1;
        outcome
    }

    /// Parses a statement. Returns whether it must be the last of its block.
    fn parse_statement(&mut self) -> ParseResult<bool> {
        let token = self.next();
        match (token.kind, token.text) {
            (TokenKind::Keyword, b"if") => self.parse_if_branches()?,
            (TokenKind::Keyword, b"while") => {
                self.parse_expression()?;
                self.expect("do")?;
                self.parse_block()?;
                self.expect("end")?;
            }
            (TokenKind::Keyword, b"do") => {
                self.parse_block()?;
                self.expect("end")?;
            }
            (TokenKind::Keyword, b"for") => self.parse_for_loop()?,
            (TokenKind::Keyword, b"repeat") => {
                self.parse_block()?;
                self.expect("until")?;
                self.parse_expression()?;
            }
            (TokenKind::Keyword, b"function") => {
                self.expect_name()?;
                let mut method = false;
                while self.next_token_is(".") || self.next_token_is(":") {
                    method = self.next().text == b":";
                    self.expect_name()?;
                }
                self.parse_function_body(method)?;
            }
            (TokenKind::Keyword, b"local") => self.parse_local_statement()?,
            (TokenKind::Keyword, b"return") => {
                let ends = self.current().kind == TokenKind::End
                    || ["else", "elseif", "end", "until", ";"].iter().any(|word| self.next_token_is(word));
                if !ends {
                    self.parse_expressions()?;
                }
                self.skip(";");
                return Ok(true);
            }
            (TokenKind::Keyword, b"break") => {
                self.skip(";");
                return Ok(true);
            }
            _ => {
                self.position -= 1;
                self.parse_assignment_or_call()?;
            }
        }
        self.skip(";");
        Ok(false)
    }

    fn parse_if_branches(&mut self) -> ParseResult {
        self.parse_expression()?;
        self.expect("then")?;
        self.parse_block()?;
        loop {
            if self.skip("elseif") {
                self.parse_expression()?;
                self.expect("then")?;
                self.parse_block()?;
            } else if self.skip("else") {
                self.parse_block()?;
                return self.expect("end");
            } else {
                return self.expect("end");
            }
        }
    }

    fn parse_for_loop(&mut self) -> ParseResult {
        let mut names = vec![self.expect_name()?];
        while self.skip(",") {
            names.push(self.expect_name()?);
        }
        if !self.skip("in") {
            self.expect("=")?;
        }
        self.parse_expressions()?;
        self.expect("do")?;
        let known = self.current_function_variables().len();
        self.current_function_variables().extend(names);
        self.parse_block()?;
        self.current_function_variables().truncate(known);
        self.expect("end")
    }

    fn parse_local_statement(&mut self) -> ParseResult {
        if self.skip("function") {
            let name = self.expect_name()?;
            self.current_function_variables().push(name);
            return self.parse_function_body(false);
        }
        let mut names = vec![self.expect_name()?];
        while self.skip(",") {
            names.push(self.expect_name()?);
        }
        if self.skip("=") {
            self.parse_expressions()?;
        }
        self.current_function_variables().extend(names);
        // The call is inserted after the statement, whose last token is the previous token.
        let last = self.tokens[self.position - 1];
        self.insert_call(last.start + last.text.len());
        Ok(())
    }

    /// Parses the parameters and the body of a function.
    fn parse_function_body(&mut self, is_method: bool) -> ParseResult {
        self.expect("(")?;
        let mut names: Vec<&[u8]> = if is_method { vec![b"self"] } else { Vec::new() };
        if !self.next_token_is(")") {
            loop {
                if self.skip("...") {
                    break;
                }
                names.push(self.expect_name()?);
                if !self.skip(",") {
                    break;
                }
            }
        }
        self.expect(")")?;
        self.locals.push(names);
        let outcome = self.parse_block();
        self.locals.pop();
        outcome?;
        self.expect("end")
    }

    fn parse_assignment_or_call(&mut self) -> ParseResult {
        self.parse_primary_expression()?;
        while self.skip(",") {
            self.parse_primary_expression()?;
        }
        if self.skip("=") { self.parse_expressions() } else { Ok(()) }
    }

    fn parse_expressions(&mut self) -> ParseResult {
        self.parse_expression()?;
        while self.skip(",") {
            self.parse_expression()?;
        }
        Ok(())
    }

    fn parse_expression(&mut self) -> ParseResult {
        self.parse_nested(|this| {
            loop {
                while this.skip("not") || this.skip("-") || this.skip("#") {}
                this.parse_simple_expression()?;
                if !BINARY_OPERATORS.iter().any(|sign| this.next_token_is(sign)) {
                    return Ok(());
                }
                this.next();
            }
        })
    }

    fn parse_simple_expression(&mut self) -> ParseResult {
        let token = self.current();
        match (token.kind, token.text) {
            (TokenKind::Number | TokenKind::Text, _)
            | (TokenKind::Keyword, b"nil" | b"true" | b"false")
            | (TokenKind::Symbol, b"...") => {
                self.next();
                Ok(())
            }
            (TokenKind::Symbol, b"{") => self.parse_table(),
            (TokenKind::Keyword, b"function") => {
                self.next();
                self.parse_function_body(false)
            }
            _ => self.parse_primary_expression(),
        }
    }

    fn parse_primary_expression(&mut self) -> ParseResult {
        if self.skip("(") {
            self.parse_expression()?;
            self.expect(")")?;
        } else {
            self.expect_name()?;
        }
        loop {
            if self.skip(".") {
                self.expect_name()?;
            } else if self.skip("[") {
                self.parse_expression()?;
                self.expect("]")?;
            } else if self.skip(":") {
                self.expect_name()?;
                self.parse_arguments()?;
            } else if self.next_token_is("(")
                || self.next_token_is("{")
                || self.current().kind == TokenKind::Text
            {
                self.parse_arguments()?;
            } else {
                return Ok(());
            }
        }
    }

    fn parse_arguments(&mut self) -> ParseResult {
        if self.next_token_is("{") {
            return self.parse_table();
        }
        if self.current().kind == TokenKind::Text {
            self.next();
            return Ok(());
        }
        self.expect("(")?;
        if !self.next_token_is(")") {
            self.parse_expressions()?;
        }
        self.expect(")")
    }

    fn parse_table(&mut self) -> ParseResult {
        self.parse_nested(|this| {
            this.expect("{")?;
            while !this.next_token_is("}") {
                if this.skip("[") {
                    this.parse_expression()?;
                    this.expect("]")?;
                    this.expect("=")?;
                } else if this.current().kind == TokenKind::Name
                    && this.tokens[this.position + 1].text == b"="
                {
                    this.position += 2;
                }
                this.parse_expression()?;
                if !this.skip(",") && !this.skip(";") {
                    break;
                }
            }
            this.expect("}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instrumented_text(text: &str) -> String {
        String::from_utf8(instrument(text.as_bytes()).expect("it is Lua").text).expect("text")
    }

    #[test]
    fn inserted_calls_report_variables_in_scope() {
        assert_eq!(
            instrumented_text("local a = 1\nreturn a"),
            " __ldb(function()return 0 end); local a = 1 __ldb(function()return 1,\"a\",a end); \n \
             __ldb(function()return 1,\"a\",a end); return a"
        );
        let nested = instrumented_text("local a\nlocal function f(x)\n return x + a\nend\nf(1)");
        assert!(
            nested.contains("\n  __ldb(function()return 1,\"x\",x,\"a\",a,\"f\",f end); return x + a"),
            "{nested}"
        );
        assert!(nested.ends_with("__ldb(function()return 2,\"a\",a,\"f\",f end); f(1)"), "{nested}");
        assert!(!nested.contains("__ldb(function()return 1,\"a\",a end); local function"), "{nested}");
    }

    #[test]
    fn parser_accepts_all_lua_syntax() {
        for text in [
            "if a then b() elseif c then d() else e() end",
            "for i = 1, 2 do local x = i end for k, v in pairs(t) do k = v end",
            "while x do x = nil break end repeat local y = f() until y == 'z' or not y",
            "a.b['c'].d = {1, 2; [3] = 4, five = 5, f(), } x, y = y, x",
            "local s = [[long\ntext]] .. [==[ ]] ]==] .. \"q\\\"uo\\\nte\" -- comment\n--[[ long\ncomment ]] f's' f{1} a:b(1)",
            "function a.b:c(x, ...) return ... end local f = function() return end return 1e-5 .. 0x1F ^ -#t",
            "(f or g)(1); ((x))()",
            "",
            "do end",
        ] {
            assert!(instrument(text.as_bytes()).is_ok(), "{text}");
        }
        for text in ["foo(", "local = 1", "x = 'open", "--[[ open", "[[", "end", "return return"] {
            let outcome = instrument(text.as_bytes());
            assert!(outcome.is_err(), "{text}: {outcome:?}");
        }
        assert!(instrument(&b"(".repeat(100_000)).is_err());
        assert!(instrument(&b"do ".repeat(100_000)).is_err());
    }
}
