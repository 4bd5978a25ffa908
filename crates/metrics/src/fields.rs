//! The lines of INFO as names and values.

/// The fields of a text in INFO's form, in their order, without the headers of sections.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    /// The fields of this text.
    #[must_use]
    pub fn of(text: &'a str) -> Self {
        Self(text)
    }

    /// Each name with its value.
    pub fn all(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'))
    }

    /// The value of the field with this name.
    #[must_use]
    pub fn value(self, name: &str) -> Option<&'a str> {
        self.all().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The fields whose names begin so, without that beginning.
    pub fn beginning(self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.all().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value)))
    }

    /// The fields whose names are this word and a number (`db0`, `slave3`).
    pub fn numbered(self, word: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        self.all().filter(move |(name, _)| name.strip_prefix(word).is_some_and(is_number))
    }
}

/// The part with this name of a value of several (`keys=3,expires=1`).
pub(crate) fn part<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(',').filter_map(|part| part.split_once('=')).find(|(known, _)| *known == name).map(|(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_and_values() {
        let text = "# Server\r\nos:Linux 6:1 x\r\nslave0:ip=::1,port=7\r\nslave_priority:100\r\n\r\n# CPU\r\ncpu:1.5\r\n";
        let fields = Fields::of(text);
        assert_eq!(fields.value("os"), Some("Linux 6:1 x"));
        assert_eq!(fields.value("# Server"), None);
        assert_eq!(fields.numbered("slave").collect::<Vec<_>>(), [("slave0", "ip=::1,port=7")]);
        assert_eq!(fields.beginning("slave_").collect::<Vec<_>>(), [("priority", "100")]);
        assert_eq!((part("ip=::1,port=7", "port"), part("a=1", "b")), (Some("7"), None));
    }
}
