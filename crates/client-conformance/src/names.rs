//! Keys and addresses in a scenario's words.
//!
//! `key(a)` is a key whose slot node `a` serves at the beginning, `key(a,2)` another one. Which, is drawn from the seed. It
//! may stand within a word: `{key(a)}:list` is in the same slot as `key(a)`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use harness::slot_of;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::scenario::{Act, Deed, Event, Scenario, range_of};

/// Draws keys, and remembers them.
#[derive(Debug)]
pub(crate) struct Names {
    random: ChaCha8Rng,
    slots: BTreeMap<String, Vec<(u16, u16)>>,
    drawn: BTreeMap<String, String>,
}

impl Names {
    fn new(scenario: &Scenario, seed: u64) -> Result<Self> {
        let mut slots = BTreeMap::new();
        for (name, node) in &scenario.nodes {
            let ranges: Result<Vec<_>> = node.slots.iter().map(|range| range_of(range)).collect();
            slots.insert(name.clone(), ranges?);
        }
        Ok(Self { random: ChaCha8Rng::seed_from_u64(seed), slots, drawn: BTreeMap::new() })
    }

    fn key(&mut self, which: &str) -> Result<String> {
        if let Some(key) = self.drawn.get(which) {
            return Ok(key.clone());
        }
        let node = which.split(',').next().unwrap_or_default();
        let ranges = self.slots.get(node).with_context(|| format!("there is no node {node}"))?;
        // Of a node without slots, any key will do: it is not asked for by slots.
        let fits = |key: &str| {
            ranges.is_empty() || ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot_of(key)))
        };
        let key = loop {
            let key = format!("key:{}", self.random.random_range(0..1_000_000));
            if fits(&key) && !self.drawn.values().any(|known| slot_of(known) == slot_of(&key)) {
                break key;
            }
        };
        self.drawn.insert(which.to_owned(), key.clone());
        Ok(key)
    }

    fn fill(&mut self, word: &mut String) -> Result<()> {
        while let Some(begin) = word.find("key(") {
            let length = word[begin..].find(')').with_context(|| format!("{word} has no end"))?;
            let which = word[begin + 4..begin + length].replace(' ', "");
            ensure!(!which.is_empty(), "{word} names no node");
            let key = self.key(&which)?;
            word.replace_range(begin..=begin + length, &key);
        }
        Ok(())
    }

    fn fill_reply(&mut self, reply: &mut Value) -> Result<()> {
        match reply {
            Value::String(word) => self.fill(word),
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.fill_reply(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Ok(()),
        }
    }

    fn fill_all<'a>(&mut self, words: impl IntoIterator<Item = &'a mut String>) -> Result<()> {
        words.into_iter().try_for_each(|word| self.fill(word))
    }
}

/// The scenario with keys in the place of their names.
pub(crate) fn filled(scenario: &Scenario, seed: u64) -> Result<Scenario> {
    let mut names = Names::new(scenario, seed)?;
    let mut scenario = scenario.clone();
    for rule in &mut scenario.rules {
        names.fill_all(&mut rule.key)?;
        if let Deed::Error(text) = &mut rule.deed {
            names.fill(text)?;
        }
    }
    for step in &mut scenario.steps {
        match &mut step.act {
            Act::Command(words) | Act::Script(words) | Act::Subscribe(words) | Act::Ssubscribe(words) => {
                names.fill_all(words)?;
            }
            Act::Pipeline(commands) | Act::Transaction(commands) => {
                names.fill_all(commands.iter_mut().flatten())?;
            }
            Act::Hears { channel, data } => names.fill_all([channel, data])?,
            Act::Stage(Event::Move { key, .. }) => names.fill(key)?,
            Act::Stage(Event::Run { command, .. }) => names.fill_all(command)?,
            Act::Stage(
                Event::Net { .. }
                | Event::Promote { .. }
                | Event::Tells { .. }
                | Event::Readdress { .. }
                | Event::Certificate { .. },
            )
            | Act::Pause(_) => {}
        }
        if let Some(reply) = &mut step.wants.reply {
            names.fill_reply(reply)?;
        }
    }
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
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

    fn commands(seed: u64) -> Vec<String> {
        let scenario = filled(&Scenario::read("t", TWO).unwrap(), seed).unwrap();
        let key = scenario.rules[0].key.clone();
        let commands = scenario.steps.iter().filter_map(|step| match &step.act {
            Act::Command(words) => Some(words[1].clone()),
            _ => None,
        });
        key.into_iter().chain(commands).collect()
    }

    #[test]
    fn a_key_is_of_its_node_and_of_the_seed() {
        let keys = commands(1);
        assert_eq!(keys[0], keys[1]);
        assert_eq!(slot_of(&keys[2]), slot_of(&keys[1]));
        assert!(slot_of(&keys[1]) < 8192 && slot_of(&keys[3]) >= 8192);
        assert_eq!(keys, commands(1));
        assert_ne!(keys, commands(2));
    }
}
