//! Operator commands: MONITOR, REMOVE, RESET and FAILOVER.

use consensus::{GroupChange, GroupRecord, SavedGroup, Term};

use super::{CommandCall, save_and_confirm};
use crate::addr::{Addr, is_host, is_ip};
use crate::config::{KnownMaster, is_name};
use crate::event::EventLevel;
use crate::machine::Sentinel;
use crate::master::Master;
use crate::master::failovers::FailoverCause;
use crate::settings::MasterSettings;
use crate::shared::Context;

pub(super) fn failover(call: &mut CommandCall<'_>) {
    if call.args.len() > 2 {
        call.reply.error("ERR wrong number of arguments for 'sentinel|failover' command");
        return;
    }
    if call.find_master(0).is_none() {
        return;
    }
    let cause = match call.args.get(1) {
        None => FailoverCause::Operator,
        Some(word) if word.eq_ignore_ascii_case(b"coordinated") => FailoverCause::Coordinated,
        Some(_) => {
            call.reply.error("ERR Unknown failover option specified");
            return;
        }
    };
    let Some((master, mut cx)) = call.find_master_mut(0) else { return };
    if master.failover().is_some() {
        call.reply.error("INPROG Failover already in progress");
        return;
    }
    if !master.has_eligible_replica(&cx) {
        call.reply.error("NOGOODSLAVE No suitable replica to promote");
        return;
    }
    let name = master.name().to_owned();
    cx.log(EventLevel::Notice, format!("Executing user requested FAILOVER of '{name}'"));
    master.record_failover_step(&mut cx, "requested by an operator".into());
    master.start_failover(&mut cx, cause);
    master.advance_failover(&mut cx);
    call.reply.ok();
}

pub(super) fn flushconfig(call: &mut CommandCall<'_>) {
    save_and_confirm(call);
}

pub(super) fn monitor(call: &mut CommandCall<'_>) {
    let (Some(quorum), Some(port)) = (call.number_arg::<i64>(3), call.number_arg::<i64>(2)) else {
        let what =
            if call.number_arg::<i64>(3).is_none() { "ERR Invalid quorum" } else { "ERR Invalid port" };
        call.reply.error(what);
        return;
    };
    let (name, host) = (call.text_arg(0).to_owned(), call.text_arg(1).to_owned());
    let names = call.sentinel.shared.global.resolve_hostnames;
    let quorum = u32::try_from(quorum).unwrap_or(0);
    let port = u16::try_from(port);
    let problem = match () {
        () if quorum == 0 => Some("ERR Quorum must be 1 or greater."),
        () if !is_name(&name) => Some("ERR Invalid master name"),
        () if call.sentinel.masters.contains_key(&name) => Some("ERR Duplicate master name."),
        () if port.is_err() => Some("ERR Invalid port number."),
        () if !is_host(&host) || (!names && !is_ip(&host)) => {
            Some("ERR Invalid IP address or hostname specified")
        }
        () => None,
    };
    if let Some(problem) = problem {
        call.reply.error(problem);
        return;
    }
    let mut settings = MasterSettings::new(quorum);
    settings.down_after = call.sentinel.shared.timing.default_down_after;
    settings.failover_timeout = call.sentinel.shared.timing.default_failover_timeout;
    let known = KnownMaster {
        name: name.clone(),
        addr: Addr { host, port: port.unwrap_or(0) },
        settings,
        config_epoch: 0,
        leader_epoch: 0,
        replicas: Vec::new(),
        sentinels: Vec::new(),
    };
    let Sentinel { masters, shared, .. } = &mut *call.sentinel;
    let mut cx = Context { now: call.now, shared, out: call.out };
    // If the master was monitored before, this sentinel may have forgotten votes, so it votes in no epoch up to the
    // current one.
    let saved = SavedGroup { term: Term(cx.shared.epoch + 1), ..SavedGroup::default() };
    let ballot = GroupChange::Ballot { term: saved.term, vote: 0, commit: 0 };
    let record = GroupRecord { group: name.clone(), changes: vec![ballot] };
    cx.persist(record);
    cx.resolve(&known.addr.host);
    let master = Master::new(&mut cx, &known, saved);
    masters.insert(name, master);
    save_and_confirm(call);
}

pub(super) fn remove(call: &mut CommandCall<'_>) {
    let name = call.text_arg(0).to_owned();
    let Some((master, mut cx)) = call.find_master_mut(0) else { return };
    master.announce(&mut cx, EventLevel::Warning, "-monitor", "");
    cx.persist(GroupRecord { group: name.clone(), changes: vec![GroupChange::Dropped] });
    cx.shared.links_changed = true;
    cx.shared.scheduler.forget(&name);
    call.sentinel.masters.remove(&name);
    save_and_confirm(call);
}

pub(super) fn reset(call: &mut CommandCall<'_>) {
    let pattern = call.args.first().copied().unwrap_or_default();
    let Sentinel { masters, shared, .. } = &mut *call.sentinel;
    let mut cx = Context { now: call.now, shared, out: call.out };
    let mut count = 0;
    for master in masters.values_mut().filter(|one| glob::matches(pattern, one.name().as_bytes())) {
        master.reset(&mut cx);
        count += 1;
    }
    if count > 0 {
        call.sentinel.write_config(call.out);
    }
    call.reply.integer(count);
}
