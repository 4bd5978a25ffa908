//! Parses the `name:value` lines of INFO.

/// INFO text whose fields can be listed in order or looked up by name. Section headers are skipped.
#[derive(Debug, Clone, Copy)]
pub struct InfoFields<'a>(&'a str);

impl<'a> InfoFields<'a> {
    /// Wraps `text`, which must be in INFO's format.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self(text)
    }

    /// Returns each field's name and value.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'))
    }

    /// Returns the value of the field `name`.
    #[must_use]
    pub fn value(self, name: &str) -> Option<&'a str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns the fields whose names start with `prefix`, with the prefix removed.
    pub fn with_prefix(self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value)))
    }

    /// Returns the fields named `word` plus a number, such as `db0` or `slave3`.
    pub fn numbered_fields(self, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        self.iter().filter(move |(name, _)| name.strip_prefix(word).is_some_and(is_number))
    }
}

/// Returns one entry of a composite value: `find_entry("keys=3,expires=1", "keys")` is `3`.
pub(crate) fn find_entry<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(',').filter_map(|part| part.split_once('=')).find(|(known, _)| *known == name).map(|(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_info_lines() {
        let text = "# Server\r\nos:Linux 6:1 x\r\nslave0:ip=::1,port=7\r\nslave_priority:100\r\n\r\n# CPU\r\ncpu:1.5\r\n";
        let fields = InfoFields::new(text);
        assert_eq!(fields.value("os"), Some("Linux 6:1 x"));
        assert_eq!(fields.value("# Server"), None);
        assert_eq!(fields.numbered_fields("slave").collect::<Vec<_>>(), [("slave0", "ip=::1,port=7")]);
        assert_eq!(fields.with_prefix("slave_").collect::<Vec<_>>(), [("priority", "100")]);
        assert_eq!((find_entry("ip=::1,port=7", "port"), find_entry("a=1", "b")), (Some("7"), None));
    }
}
