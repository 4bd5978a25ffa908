//! Lua scripts. A script is called by its hash. If the server does not know the hash, the text is sent.

use std::sync::LazyLock;

use redis::Cmd;

/// A Lua script with its hash.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    hash: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, hash: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Returns the command that runs the script: EVALSHA, or EVAL with the full text.
    pub(crate) fn command(&self, call: &ScriptCall, sends_full_text: bool) -> Cmd {
        let mut command = if sends_full_text { redis::cmd("EVAL") } else { redis::cmd("EVALSHA") };
        command.arg(if sends_full_text { self.source } else { &self.hash });
        command.arg(call.keys.len()).arg(&call.keys).arg(&call.arguments);
        command
    }
}

/// A script call with its keys and arguments.
#[derive(Debug, Clone)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static LazyLock<Script>,
    pub(crate) keys: Vec<String>,
    pub(crate) arguments: Vec<String>,
}

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!(include_str!("scripts/fence.lua"), $(include_str!($file)),+)));
    };
}

script!(LOCK, "scripts/lock.lua");
script!(EXTEND, "scripts/extend.lua");
script!(RELEASE, "scripts/release.lua");
script!(FAIR_LOCK, "scripts/fair_lock.lua");
script!(FAIR_RELEASE, "scripts/fair_release.lua");
script!(READ_LOCK, "scripts/readers.lua", "scripts/read_lock.lua");
script!(READ_EXTEND, "scripts/readers.lua", "scripts/read_extend.lua");
script!(READ_RELEASE, "scripts/readers.lua", "scripts/read_release.lua");
script!(WRITE_LOCK, "scripts/readers.lua", "scripts/write_lock.lua");
script!(WRITE_RELEASE, "scripts/write_release.lua");
script!(PERMIT, "scripts/permit.lua");
script!(PERMIT_EXTEND, "scripts/permit_extend.lua");
script!(PERMIT_RELEASE, "scripts/permit_release.lua");
script!(PLAIN_LOCK, "scripts/plain_lock.lua");
script!(PLAIN_EXTEND, "scripts/plain_extend.lua");
script!(PLAIN_RELEASE, "scripts/plain_release.lua");
script!(RECORD_TOKEN, "scripts/record_token.lua");
script!(LATCH_SET, "scripts/latch_set.lua");
script!(LATCH_COUNT, "scripts/latch_count.lua");
script!(LATCH_REMAINING, "scripts/latch_remaining.lua");
