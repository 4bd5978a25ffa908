//! Selects the fault rule that applies to a command.

use super::first_key;
use crate::scenario::{FaultRule, ReplyFault};

#[derive(Debug)]
struct RuleState {
    rule: FaultRule,
    /// The number of commands that have matched the rule so far.
    match_count: u32,
    first_applied_ms: Option<u64>,
}

/// The fault rules of the scenario, with their usage counts.
#[derive(Debug)]
pub(super) struct RuleMatcher(Vec<RuleState>);

impl RuleMatcher {
    pub(super) fn new(rules: &[FaultRule]) -> Self {
        Self(
            rules
                .iter()
                .map(|rule| RuleState { rule: rule.clone(), match_count: 0, first_applied_ms: None })
                .collect(),
        )
    }

    /// Returns the fault of the first rule that applies to the command, and counts its use.
    pub(super) fn next_fault(&mut self, now_ms: u64, node: &str, args: &[String]) -> Option<ReplyFault> {
        self.0.iter_mut().find_map(|state| state.next_fault(now_ms, node, args))
    }
}

impl RuleState {
    fn next_fault(&mut self, now_ms: u64, node: &str, args: &[String]) -> Option<ReplyFault> {
        let rule = &self.rule;
        let here = rule.at.is_empty() || rule.at.iter().any(|name| name == node);
        let named = rule.on == "*"
            || rule.on.split(' ').enumerate().all(|(place, word)| {
                args.get(place).is_some_and(|argument| argument.eq_ignore_ascii_case(word))
            });
        let keyed = rule.key.as_ref().is_none_or(|key| first_key(args) == Some(key));
        if !(here && named && keyed) {
            return None;
        }
        self.match_count += 1;
        if self.match_count <= rule.skip {
            return None;
        }
        let spent = rule.times.is_some_and(|times| self.match_count - rule.skip > times);
        let since = *self.first_applied_ms.get_or_insert(now_ms);
        let over = rule.for_ms.is_some_and(|length| now_ms.saturating_sub(since) >= length);
        (!spent && !over).then(|| rule.fault.clone())
    }
}
