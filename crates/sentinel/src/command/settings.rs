//! Commands that change options: SENTINEL CONFIG, SET and DEBUG.

use std::collections::BTreeSet;
use std::time::Duration;

use ::config::LogLevel;

use super::{CommandCall, announce_set, save_and_confirm};
use crate::machine::{Sentinel, SentinelAction};
use crate::settings::GlobalSettings;
use crate::shared::Context;

pub(super) fn myid(call: &mut CommandCall<'_>) {
    let id = call.sentinel.my_id().to_string();
    call.reply.bulk(id.as_bytes());
}

pub(super) fn pending_scripts(call: &mut CommandCall<'_>) {
    let jobs = &call.sentinel.shared.scripts.jobs;
    call.reply.array(jobs.len());
    for job in jobs {
        call.reply.map(4);
        call.reply.bulk(b"argv");
        call.reply.array(job.argv.len());
        for word in &job.argv {
            call.reply.bulk(word.as_bytes());
        }
        call.reply.bulk(b"flags");
        call.reply.bulk(if job.started.is_some() { b"running" } else { b"scheduled" });
        call.reply.bulk(b"run-time");
        let ran = job.started.map_or(0, |at| call.now.since(at).as_millis());
        call.reply.bulk(ran.to_string().as_bytes());
        call.reply.bulk(b"retry-num");
        call.reply.bulk(job.retries.to_string().as_bytes());
    }
}

pub(super) fn simulate_failure(call: &mut CommandCall<'_>) {
    let shared = &mut call.sentinel.shared;
    (shared.crash_after_election, shared.crash_after_promotion) = (false, false);
    for at in 0..call.args.len() {
        let word = call.text_arg(at).to_ascii_lowercase();
        let shared = &mut call.sentinel.shared;
        match word.as_str() {
            "crash-after-election" => shared.crash_after_election = true,
            "crash-after-promotion" => shared.crash_after_promotion = true,
            "help" => {
                call.reply.array(2);
                call.reply.bulk(b"crash-after-election");
                call.reply.bulk(b"crash-after-promotion");
                return;
            }
            _ => {
                call.reply.error("ERR Unknown failure simulation specified");
                return;
            }
        }
    }
    call.reply.ok();
}

pub(super) fn debug(call: &mut CommandCall<'_>) {
    if call.args.is_empty() {
        let fields: Vec<(&'static str, String)> = {
            let fields = call.sentinel.shared.timing.named_values();
            fields.map(|(name, value)| (name, value.as_millis().to_string())).into()
        };
        call.reply_fields(&fields);
        return;
    }
    for at in (0..call.args.len()).step_by(2) {
        let (option, value) = (call.text_arg(at).to_owned(), call.text_arg(at + 1).to_owned());
        let mut fields = call.sentinel.shared.timing.named_values();
        let field = fields.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case(&option));
        let Some((_, field)) = field.filter(|_| at + 1 < call.args.len()) else {
            call.reply
                .error(&format!("ERR Unknown option or number of arguments for SENTINEL DEBUG '{option}'"));
            return;
        };
        let Some(millis) = value.parse::<u64>().ok().filter(|&millis| millis > 0 && millis < 1 << 40) else {
            call.reply.error(&format!("ERR Invalid argument '{value}' for SENTINEL DEBUG '{option}'"));
            return;
        };
        **field = Duration::from_millis(millis);
    }
    call.sentinel.schedule_all_rounds();
    call.reply.ok();
}

pub(super) fn config(call: &mut CommandCall<'_>) {
    match (call.text_arg(0).to_ascii_lowercase().as_str(), call.args.len()) {
        ("get", _) => config_get(call),
        ("set", 3..) => config_set(call),
        _ => call.reply.error(
            "ERR Only SENTINEL CONFIG GET <param> [<param> <param> ...] / SET <param> <value> [<param> <value> ...] \
             are supported.",
        ),
    }
}

fn config_get(call: &mut CommandCall<'_>) {
    let global = &call.sentinel.shared.global;
    let word = |flag| if flag { "yes" } else { "no" }.to_owned();
    let all: [(&'static str, String); 7] = [
        ("resolve-hostnames", word(global.resolve_hostnames)),
        ("announce-hostnames", word(global.announce_hostnames)),
        ("announce-ip", global.announce_ip.clone().unwrap_or_default()),
        ("announce-port", global.announce_port.to_string()),
        ("sentinel-user", global.sentinel_user.clone()),
        ("sentinel-pass", global.sentinel_pass.clone()),
        ("loglevel", global.log_level.to_string()),
    ];
    let patterns: Vec<Vec<u8>> = call.args[1..].iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
    let mut found: Vec<(&'static str, String)> = Vec::new();
    for pattern in &patterns {
        let new = all.iter().filter(|(name, _)| glob::matches(pattern, name.as_bytes()));
        let new: Vec<_> = new.filter(|one| !found.contains(one)).cloned().collect();
        found.extend(new);
    }
    call.reply_fields(&found);
}

/// SENTINEL CONFIG SET: applies all option-value pairs or none.
fn config_set(call: &mut CommandCall<'_>) {
    let mut global = call.sentinel.shared.global.clone();
    let mut seen = BTreeSet::new();
    for at in (1..call.args.len()).step_by(2) {
        let option = call.text_arg(at).to_owned();
        let error = match () {
            () if !GLOBAL_OPTIONS.contains(&option.to_ascii_lowercase().as_str()) => {
                format!("ERR Invalid argument '{option}' to SENTINEL CONFIG SET")
            }
            () if at + 1 == call.args.len() => format!("ERR Missing argument '{option}' value"),
            () if !seen.insert(option.to_ascii_lowercase()) => {
                format!("ERR Duplicate argument '{option}' to SENTINEL CONFIG SET")
            }
            () if !set_global(&mut global, &option, call.text_arg(at + 1)) => {
                let value = call.text_arg(at + 1);
                format!("ERR Invalid value '{value}' to SENTINEL CONFIG SET '{option}'")
            }
            () => continue,
        };
        call.reply.error(&error);
        return;
    }
    let Sentinel { masters, shared, .. } = &mut *call.sentinel;
    let before = std::mem::replace(&mut shared.global, global);
    let mut cx = Context { now: call.now, shared, out: call.out };
    if seen.contains("loglevel") {
        cx.out.push(SentinelAction::SetLogLevel(cx.shared.global.log_level));
    }
    let credentials = |global: &GlobalSettings| (global.sentinel_user.clone(), global.sentinel_pass.clone());
    if credentials(&before) != credentials(&cx.shared.global) {
        for master in masters.values() {
            master.reconnect_to_sentinels(&mut cx);
        }
    }
    call.sentinel.schedule_all_rounds();
    save_and_confirm(call);
}

/// The options known to SENTINEL CONFIG.
const GLOBAL_OPTIONS: [&str; 7] = [
    "announce-hostnames",
    "announce-ip",
    "announce-port",
    "loglevel",
    "resolve-hostnames",
    "sentinel-pass",
    "sentinel-user",
];

/// Sets an option of [`GLOBAL_OPTIONS`]; returns false if the value is invalid.
fn set_global(global: &mut GlobalSettings, option: &str, value: &str) -> bool {
    let flag = match value.to_ascii_lowercase().as_str() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    };
    let mut good = true;
    match option.to_ascii_lowercase().as_str() {
        "resolve-hostnames" => good = flag.map(|flag| global.resolve_hostnames = flag).is_some(),
        "announce-hostnames" => good = flag.map(|flag| global.announce_hostnames = flag).is_some(),
        "announce-ip" if value.is_empty() => global.announce_ip = None,
        "announce-ip" => {
            good = crate::addr::is_host(value);
            global.announce_ip = Some(value.to_owned());
        }
        "announce-port" => good = value.parse().map(|port| global.announce_port = port).is_ok(),
        "sentinel-user" => value.clone_into(&mut global.sentinel_user),
        "sentinel-pass" => value.clone_into(&mut global.sentinel_pass),
        "loglevel" => {
            global.log_level_set = true;
            good = LogLevel::from_word(value).map(|level| global.log_level = level).is_some();
        }
        _ => good = false,
    }
    good
}

impl Sentinel {
    /// The scripts that a SENTINEL SET would configure, each with the index of its option in `args` and its name. The
    /// caller checks that these files are executable, and passes the first one that is not with the command
    /// ([`RejectedScript`](crate::RejectedScript)).
    #[must_use]
    pub fn scripts_to_set(&self, args: &[Vec<u8>]) -> Vec<(usize, &'static str, String)> {
        let is =
            |at: usize, word: &str| args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
        let known = || {
            let name = args.get(2).and_then(|name| std::str::from_utf8(name).ok());
            name.is_some_and(|name| self.masters.contains_key(name))
        };
        if self.shared.global.deny_scripts_reconfig || !is(0, "sentinel") || !is(1, "set") || !known() {
            return Vec::new();
        }
        let (mut found, mut at) = (Vec::new(), 3);
        while at + 1 < args.len() {
            if let Some(option) = SCRIPT_OPTIONS.into_iter().find(|option| is(at, option)) {
                let path = String::from_utf8_lossy(&args[at + 1]).into_owned();
                found.extend((!path.is_empty()).then_some((at, option, path)));
            }
            at += 1 + value_count(&args[at].to_ascii_lowercase());
        }
        found
    }
}

/// Returns the number of values that an option of SENTINEL SET takes.
fn value_count(option: &[u8]) -> usize {
    if option == b"rename-command" { 2 } else { 1 }
}

/// The options whose values are scripts.
const SCRIPT_OPTIONS: [&str; 2] = ["notification-script", "client-reconfig-script"];

/// SENTINEL SET: applies option-value pairs to a master; `rename-command` takes two values.
pub(super) fn set_options(call: &mut CommandCall<'_>) {
    if call.find_master(0).is_none() {
        return;
    }
    let name = call.text_arg(0).to_owned();
    let mut at = 1;
    while at < call.args.len() {
        let option = call.text_arg(at).to_ascii_lowercase();
        let wanted = value_count(option.as_bytes());
        let values: Vec<String> = (1..=wanted).map(|next| call.text_arg(at + next).to_owned()).collect();
        let complete = at + wanted < call.args.len();
        // The index counts from the name of the command.
        let rejected = call.rejected_script.as_ref().filter(|rejected| rejected.option_index == at + 2);
        let outcome = match rejected {
            Some(rejected) => Err(RejectedOption::Script(rejected.error.clone())),
            None if complete => set_option(call, &name, &option, &values),
            None => Err(RejectedOption::Unknown),
        };
        match outcome {
            Ok(()) => {}
            Err(refused) => {
                let asked = call.text_arg(at).to_owned();
                let text = match refused {
                    RejectedOption::Unknown => {
                        format!("ERR Unknown option or number of arguments for SENTINEL SET '{asked}'")
                    }
                    RejectedOption::Script(error) => format!("ERR {error}"),
                    RejectedOption::InvalidValue(value) => format!("ERR Invalid argument '{value}' for SENTINEL SET '{asked}'"),
                    RejectedOption::ScriptsDenied => "ERR Reconfiguration of scripts path is denied for security reasons. \
                        Check the deny-scripts-reconfig configuration directive in your Sentinel configuration"
                        .to_owned(),
                };
                call.reply.error(&text);
                // The options before it are applied.
                return call.sentinel.write_config(call.out);
            }
        }
        at += 1 + wanted;
    }
    save_and_confirm(call);
}

enum RejectedOption {
    Unknown,
    InvalidValue(String),
    /// The process cannot execute the script.
    Script(String),
    ScriptsDenied,
}

fn set_option(
    call: &mut CommandCall<'_>,
    name: &str,
    option: &str,
    values: &[String],
) -> Result<(), RejectedOption> {
    let Sentinel { masters, shared, .. } = &mut *call.sentinel;
    let master = masters.get_mut(name).expect("checked by the caller");
    let mut cx = Context { now: call.now, shared, out: call.out };
    let settings = master.settings_mut();
    let value = values[0].as_str();
    let bad = || RejectedOption::InvalidValue(value.to_owned());
    let millis = |zero: bool| {
        let millis = value.parse::<u64>().ok().filter(|&millis| (zero || millis > 0) && millis < 1 << 40);
        millis.map(Duration::from_millis).ok_or_else(bad)
    };
    let count = || value.parse::<u32>().ok().filter(|&count| count > 0).ok_or_else(bad);
    let script = || match (cx.shared.global.deny_scripts_reconfig, value) {
        (true, _) => Err(RejectedOption::ScriptsDenied),
        (false, "") => Ok(None),
        (false, path) => Ok(Some(path.to_owned())),
    };
    match option {
        "down-after-milliseconds" => settings.down_after = millis(false)?,
        "refused-after-milliseconds" => settings.refused_after = millis(true)?,
        "failover-timeout" => settings.failover_timeout = millis(false)?,
        "master-reboot-down-after-period" | "primary-reboot-down-after-period" => {
            settings.reboot_down_after = millis(true)?;
        }
        "parallel-syncs" => settings.parallel_syncs = count()?,
        "quorum" => settings.quorum = count()?,
        "notification-script" => settings.notification_script = script()?,
        "client-reconfig-script" => settings.client_reconfig_script = script()?,
        "auth-user" => value.clone_into(&mut settings.auth_user),
        "auth-pass" => value.clone_into(&mut settings.auth_pass),
        "rename-command" => {
            let (from, to) = (value.to_ascii_uppercase(), &values[1]);
            if from.is_empty() || to.is_empty() {
                return Err(RejectedOption::InvalidValue(String::new()));
            }
            settings.renamed.insert(from, to.clone());
        }
        _ => return Err(RejectedOption::Unknown),
    }
    let shown = if option == "auth-pass" { "******".to_owned() } else { values.join(" ") };
    announce_set(master, &mut cx, option, &shown);
    cx.shared.scheduler.schedule_round(master.name());
    if option.starts_with("auth-") {
        master.reconnect_to_servers(&mut cx);
    }
    Ok(())
}
