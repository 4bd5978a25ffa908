//! Replaces key placeholders in scenarios.
//!
//! `key(a)` is replaced by a key in a slot that node `a` serves at the beginning, and `key(a,2)` by another such key.
//! The seed decides which keys are drawn. Placeholders may be part of a word: `{key(a)}:list` is in the slot of
//! `key(a)`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use harness::slot_of;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::scenario::{NodeEvent, ReplyFault, Scenario, StepAction, parse_slot_range};

/// Draws keys from the seed and remembers the key of each placeholder.
#[derive(Debug)]
pub(crate) struct KeyPlaceholders {
    random: ChaCha8Rng,
    slots: BTreeMap<String, Vec<(u16, u16)>>,
    keys: BTreeMap<String, String>,
}

impl KeyPlaceholders {
    fn new(scenario: &Scenario, seed: u64) -> Result<Self> {
        let mut slots = BTreeMap::new();
        for (name, node) in &scenario.nodes {
            let ranges: Result<Vec<_>> = node.slots.iter().map(|range| parse_slot_range(range)).collect();
            slots.insert(name.clone(), ranges?);
        }
        Ok(Self { random: ChaCha8Rng::seed_from_u64(seed), slots, keys: BTreeMap::new() })
    }

    fn key_for(&mut self, placeholder: &str) -> Result<String> {
        if let Some(key) = self.keys.get(placeholder) {
            return Ok(key.clone());
        }
        let node = placeholder.split(',').next().unwrap_or_default();
        let ranges = self.slots.get(node).with_context(|| format!("there is no node {node}"))?;
        // A node without slots accepts any key.
        let fits = |key: &str| {
            ranges.is_empty() || ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot_of(key)))
        };
        let key = loop {
            let key = format!("key:{}", self.random.random_range(0..1_000_000));
            if fits(&key) && !self.keys.values().any(|known| slot_of(known) == slot_of(&key)) {
                break key;
            }
        };
        self.keys.insert(placeholder.to_owned(), key.clone());
        Ok(key)
    }

    fn fill_word(&mut self, word: &mut String) -> Result<()> {
        while let Some(begin) = word.find("key(") {
            let length = word[begin..].find(')').with_context(|| format!("{word} has no end"))?;
            let which = word[begin + 4..begin + length].replace(' ', "");
            ensure!(!which.is_empty(), "{word} names no node");
            let key = self.key_for(&which)?;
            word.replace_range(begin..=begin + length, &key);
        }
        Ok(())
    }

    fn fill_reply(&mut self, reply: &mut Value) -> Result<()> {
        match reply {
            Value::String(word) => self.fill_word(word),
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.fill_reply(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Ok(()),
        }
    }

    fn fill_words<'a>(&mut self, words: impl IntoIterator<Item = &'a mut String>) -> Result<()> {
        words.into_iter().try_for_each(|word| self.fill_word(word))
    }
}

/// Returns the scenario with its key placeholders replaced.
pub(crate) fn fill_placeholders(scenario: &Scenario, seed: u64) -> Result<Scenario> {
    let mut names = KeyPlaceholders::new(scenario, seed)?;
    let mut scenario = scenario.clone();
    for rule in &mut scenario.rules {
        names.fill_words(&mut rule.key)?;
        if let ReplyFault::Error(text) = &mut rule.fault {
            names.fill_word(text)?;
        }
    }
    for step in &mut scenario.steps {
        match &mut step.action {
            StepAction::Command(words)
            | StepAction::Script(words)
            | StepAction::Subscribe(words)
            | StepAction::Ssubscribe(words) => {
                names.fill_words(words)?;
            }
            StepAction::Pipeline(commands) | StepAction::Transaction(commands) => {
                names.fill_words(commands.iter_mut().flatten())?;
            }
            StepAction::ExpectMessage { channel, data } => names.fill_words([channel, data])?,
            StepAction::ChangeNodes(NodeEvent::MoveSlot { key, .. }) => names.fill_word(key)?,
            StepAction::ChangeNodes(NodeEvent::RunCommand { command, .. }) => names.fill_words(command)?,
            StepAction::ChangeNodes(
                NodeEvent::SetConnectionHandling { .. }
                | NodeEvent::Promote { .. }
                | NodeEvent::ReportMap { .. }
                | NodeEvent::ChangeAddress { .. }
                | NodeEvent::ReplaceCertificate { .. },
            )
            | StepAction::Pause(_) => {}
        }
        if let Some(reply) = &mut step.expectation.reply {
            names.fill_reply(reply)?;
        }
    }
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_NODES: &str = "
story: s
theme: maps
mode: cluster
nodes: {a: {slots: [0-8191]}, b: {slots: [8192-16383]}}
rules: [{on: GET, key: key(a), do: silence}]
steps:
  - command: [GET, key(a)]
  - command: [GET, '{key(a)}:x']
  - command: [GET, 'key(b, 2)']
";

    fn filled_commands(seed: u64) -> Vec<String> {
        let scenario = fill_placeholders(&Scenario::parse("t", TWO_NODES).unwrap(), seed).unwrap();
        let key = scenario.rules[0].key.clone();
        let commands = scenario.steps.iter().filter_map(|step| match &step.action {
            StepAction::Command(words) => Some(words[1].clone()),
            _ => None,
        });
        key.into_iter().chain(commands).collect()
    }

    #[test]
    fn keys_depend_on_node_and_seed() {
        let keys = filled_commands(1);
        assert_eq!(keys[0], keys[1]);
        assert_eq!(slot_of(&keys[2]), slot_of(&keys[1]));
        assert!(slot_of(&keys[1]) < 8192 && slot_of(&keys[3]) >= 8192);
        assert_eq!(keys, filled_commands(1));
        assert_ne!(keys, filled_commands(2));
    }
}
