//! Which of a scenario's rules applies to a command.

use super::first_key;
use crate::scenario::{Deed, Rule};

#[derive(Debug)]
struct State {
    rule: Rule,
    /// How often it would have applied, and since when it does.
    seen: u32,
    since: Option<u64>,
}

/// The rules, with how often each has applied.
#[derive(Debug)]
pub(super) struct Rules(Vec<State>);

impl Rules {
    pub(super) fn new(rules: &[Rule]) -> Self {
        Self(rules.iter().map(|rule| State { rule: rule.clone(), seen: 0, since: None }).collect())
    }

    /// Returns the deed of the first rule that applies.
    pub(super) fn next(&mut self, ms: u64, node: &str, args: &[String]) -> Option<Deed> {
        self.0.iter_mut().find_map(|state| state.next(ms, node, args))
    }
}

impl State {
    fn next(&mut self, ms: u64, node: &str, args: &[String]) -> Option<Deed> {
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
        self.seen += 1;
        if self.seen <= rule.skip {
            return None;
        }
        let spent = rule.times.is_some_and(|times| self.seen - rule.skip > times);
        let since = *self.since.get_or_insert(ms);
        let over = rule.for_ms.is_some_and(|length| ms.saturating_sub(since) >= length);
        (!spent && !over).then(|| rule.deed.clone())
    }
}
