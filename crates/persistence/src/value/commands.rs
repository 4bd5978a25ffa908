//! Collects the commands that recreate values.

use clock::Millis;
use resp::encode_request;

use super::stream::StreamCommands;

/// Maximum number of elements per command, as in Redis.
const MAX_ELEMENTS_PER_COMMAND: usize = 64;

/// A buffer of commands that recreate keys with their values, one key after another.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    /// Complete commands that have not been written to the file yet.
    pub(crate) encoded_commands: Vec<u8>,
    key: Vec<u8>,
    /// Expiry of the current key. Its command is added after the key's last element.
    expiry: Option<Millis>,
    elements: ElementCommand,
    /// Progress within the current key, if it is a stream.
    pub(super) stream: StreamCommands,
}

/// A command under construction that adds elements to the current key.
#[derive(Debug, Default)]
struct ElementCommand {
    name: &'static str,
    words: CommandWords,
    elements: usize,
}

/// Arguments of a command, encoded as RESP bulk strings.
#[derive(Debug, Default)]
pub(super) struct CommandWords {
    bytes: Vec<u8>,
    count: usize,
}

impl CommandWords {
    pub(super) fn push(&mut self, word: &[u8]) {
        self.count += 1;
        write_word(&mut self.bytes, word);
    }
}

impl Commands {
    pub(crate) fn add(&mut self, words: &[&[u8]]) {
        encode_request(&mut self.encoded_commands, words.iter().copied());
    }

    /// Adds a command whose first argument is the key.
    pub(super) fn add_key_command(&mut self, name: &str, words: &[&[u8]]) {
        let all = [name.as_bytes(), &self.key].into_iter().chain(words.iter().copied());
        encode_request(&mut self.encoded_commands, all.collect::<Vec<_>>());
    }

    pub(super) fn add_key_subcommand(&mut self, name: &str, subcommand: &str, words: &[&[u8]]) {
        let all =
            [name.as_bytes(), subcommand.as_bytes(), &self.key].into_iter().chain(words.iter().copied());
        encode_request(&mut self.encoded_commands, all.collect::<Vec<_>>());
    }

    /// Adds a command with the key and the collected words, and clears the words.
    pub(super) fn add_key_command_with_words(&mut self, name: &str, words: &mut CommandWords) {
        self.encoded_commands.push(b'*');
        self.encoded_commands.extend_from_slice(itoa::Buffer::new().format(words.count + 2).as_bytes());
        self.encoded_commands.extend_from_slice(b"\r\n");
        write_word(&mut self.encoded_commands, name.as_bytes());
        write_word(&mut self.encoded_commands, &self.key);
        self.encoded_commands.append(&mut words.bytes);
        words.count = 0;
    }

    /// Starts a key: the commands added next recreate this key.
    pub(crate) fn begin_key(&mut self, key: &[u8], expiry: Option<Millis>) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.expiry = expiry;
        self.stream = StreamCommands::default();
    }

    /// Takes the expiry of the current key, so that no command for it follows the value.
    pub(super) fn take_expiry(&mut self) -> Option<Millis> {
        self.expiry.take()
    }

    /// Ends the current key by adding the command that sets its expiry, if it has one.
    pub(crate) fn end_key(&mut self) {
        if let Some(Millis(at)) = self.expiry.take() {
            self.add_key_command("PEXPIREAT", &[itoa::Buffer::new().format(at).as_bytes()]);
        }
    }

    /// Adds an element to the command under construction, or starts a new one.
    pub(super) fn add_element(&mut self, name: &'static str, words: &[&[u8]]) {
        if self.elements.elements == MAX_ELEMENTS_PER_COMMAND {
            self.flush_elements();
        }
        let elements = &mut self.elements;
        elements.name = name;
        elements.elements += 1;
        words.iter().for_each(|word| elements.words.push(word));
    }

    /// Completes the command under construction, so that a different command can follow.
    pub(crate) fn flush_elements(&mut self) {
        let ElementCommand { name, mut words, elements } = std::mem::take(&mut self.elements);
        if elements > 0 {
            self.add_key_command_with_words(name, &mut words);
        }
        self.elements.words = words;
    }
}

fn write_word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b'$');
    out.extend_from_slice(itoa::Buffer::new().format(word.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}
