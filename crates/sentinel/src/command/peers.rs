//! Commands of other sentinels, and operator commands about them.

use consensus::GroupInput;

use super::CommandCall;
use crate::addr::{Addr, RunId};
use crate::machine::Sentinel;
use crate::shared::Context;
use crate::writes::Condition;

/// Protocol version of SENTINEL RAFT. A sentinel that answers the version query with a number supports consensus
/// groups.
const RAFT_VERSION: i64 = 1;

pub(super) fn raft(call: &mut CommandCall<'_>) {
    if call.args.is_empty() {
        call.reply.integer(RAFT_VERSION);
        return;
    }
    if call.args.len() != 2 {
        call.reply.error("ERR wrong number of arguments for 'sentinel|raft' command");
        return;
    }
    let message = call.args[1];
    let Some((master, mut cx)) = call.find_master_mut(0) else { return };
    master.drive_group(&mut cx, GroupInput::Message(message));
    master.advance_failover(&mut cx);
    call.reply.ok();
}

pub(super) fn is_master_down(call: &mut CommandCall<'_>) {
    let (Some(port), Some(epoch)) = (call.number_arg::<i64>(1), call.number_arg::<i64>(2)) else {
        call.reply.error("ERR value is not an integer or out of range");
        return;
    };
    let run_id = RunId::parse(call.text_arg(3));
    let host = call.text_arg(0).to_owned();
    let Sentinel { masters, shared, .. } = &mut *call.sentinel;
    let addr = u16::try_from(port).ok().map(|port| Addr { host, port });
    let asked = addr.and_then(|addr| {
        masters.values_mut().find(|one| shared.same_addr(one.servers().master().addr(), &addr))
    });
    let mut cx = Context { now: call.now, shared, out: call.out };
    let epoch = u64::try_from(epoch).unwrap_or(0);
    let answer = asked.map(|master| master.answer_query(&mut cx, epoch, run_id.as_ref()));
    let (down, leader, leader_epoch, condition) = answer.unwrap_or((false, None, 0, Condition::Nothing));
    call.condition = condition;
    call.reply.array(3);
    call.reply.integer(i64::from(down));
    call.reply.bulk(leader.as_ref().map_or(b"*".as_slice(), |leader| leader.as_str().as_bytes()));
    call.reply.integer(if leader.is_some() { leader_epoch as i64 } else { 0 });
}

pub(super) fn ckquorum(call: &mut CommandCall<'_>) {
    let Some(master) = call.find_master(0) else { return };
    let (gone, here): (Vec<_>, Vec<_>) = master.sentinels().iter().partition(|peer| peer.sdown().is_some());
    let usable = here.len() + 1;
    let mut reasons = Vec::new();
    if usable < master.settings().quorum as usize {
        reasons.push("Not enough available Sentinels to reach the specified quorum for this master");
    }
    if usable < master.sentinels().majority() {
        reasons.push("Not enough available Sentinels to reach the majority and authorize a failover");
    }
    let names: Vec<String> =
        gone.iter().map(|peer| format!("{} at {}", peer.run_id(), peer.addr())).collect();
    let names =
        if names.is_empty() { String::new() } else { format!(". Out of reach: {}", names.join(", ")) };
    if reasons.is_empty() {
        let text =
            format!("OK {usable} usable Sentinels. Quorum and failover authorization can be reached{names}");
        call.reply.simple(&text);
    } else {
        call.reply.error(&format!("NOQUORUM {usable} usable Sentinels. {}{names}", reasons.join(". ")));
    }
}

pub(super) fn forget_peer(call: &mut CommandCall<'_>) {
    let run_id = RunId::parse(call.text_arg(1));
    let Some((master, mut cx)) = call.find_master_mut(0) else { return };
    if !run_id.is_some_and(|run_id| master.forget_sentinel(&mut cx, &run_id)) {
        call.reply.error("ERR No such Sentinel with that run id");
        return;
    }
    super::save_and_confirm(call);
}
