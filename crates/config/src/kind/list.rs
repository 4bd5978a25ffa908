//! Multi-word values.

use std::sync::Arc;
use std::time::Duration;

use super::number::parse_memory;
use super::word::{invalid_choice_error, parse_choice};
use super::{
    Text, ValueKind, WRONG_COUNT_ERROR, join_values, single_line, split_arguments, split_keeping_empty,
};
use crate::choices::{Choice, ShutdownWord};

/// A list of arbitrary words.
#[derive(Debug)]
pub(crate) struct WordListKind;

/// Accepts a list of arbitrary words.
pub(crate) const fn word_list() -> WordListKind {
    WordListKind
}

impl ValueKind for WordListKind {
    type Value = Arc<[Text]>;

    fn parse(&self, words: &[String], _: Option<&Arc<[Text]>>) -> Result<Arc<[Text]>, String> {
        Ok(split_arguments(words).into_iter().map(Text::from).collect())
    }

    fn format(&self, value: &Arc<[Text]>) -> String {
        value.join(" ")
    }

    fn config_lines(&self, value: &Arc<[Text]>) -> Vec<String> {
        single_line(self.format(value))
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "words separated by spaces".to_owned()
    }
}

#[derive(Debug)]
pub(crate) struct ShutdownOptionsKind;

/// Accepts the options of SHUTDOWN that a signal may imply.
pub(crate) const fn shutdown_options() -> ShutdownOptionsKind {
    ShutdownOptionsKind
}

impl ValueKind for ShutdownOptionsKind {
    type Value = Arc<[ShutdownWord]>;

    fn parse(
        &self,
        words: &[String],
        _: Option<&Arc<[ShutdownWord]>>,
    ) -> Result<Arc<[ShutdownWord]>, String> {
        if words.is_empty() {
            return Err(invalid_choice_error(ShutdownWord::WORDS.iter().map(|(word, _)| *word)));
        }
        let words: Vec<ShutdownWord> =
            split_keeping_empty(words).into_iter().map(parse_choice).collect::<Result<_, _>>()?;
        if words.contains(&ShutdownWord::Save) && words.contains(&ShutdownWord::NoSave) {
            return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".to_owned());
        }
        // Normalize the options: drop duplicates and sort by the order of the table.
        let all = ShutdownWord::WORDS.iter().map(|(_, word)| *word);
        let options = all.filter(|word| *word != ShutdownWord::Default && words.contains(word));
        let options: Arc<[ShutdownWord]> = options.collect();
        Ok(if options.is_empty() { Arc::new([ShutdownWord::Default]) } else { options })
    }

    fn format(&self, value: &Arc<[ShutdownWord]>) -> String {
        join_values(value.iter())
    }

    fn config_lines(&self, value: &Arc<[ShutdownWord]>) -> Vec<String> {
        single_line(self.format(value))
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        format!(
            "one or more of {}",
            super::format_word_list(ShutdownWord::WORDS.iter().map(|(word, _)| *word))
        )
    }
}

/// A list of percentiles from 0 to 100.
#[derive(Debug)]
pub(crate) struct PercentileListKind;

/// Accepts percentiles from 0 to 100.
pub(crate) const fn percentile_list() -> PercentileListKind {
    PercentileListKind
}

impl ValueKind for PercentileListKind {
    type Value = Arc<[f64]>;

    fn parse(&self, words: &[String], _: Option<&Arc<[f64]>>) -> Result<Arc<[f64]>, String> {
        if words == [""] {
            return Ok(Arc::default());
        }
        let number = |word: &str| word.parse().ok().filter(|value: &f64| !value.is_nan());
        let values: Option<Arc<[f64]>> = split_keeping_empty(words).into_iter().map(number).collect();
        let values = values.ok_or("Invalid latency-tracking-info-percentiles parameters")?;
        if values.iter().all(|value| (0.0..=100.0).contains(value)) {
            return Ok(values);
        }
        Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".to_owned())
    }

    fn format(&self, value: &Arc<[f64]>) -> String {
        join_values(value.iter())
    }

    fn config_lines(&self, value: &Arc<[f64]>) -> Vec<String> {
        single_line(self.format(value))
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "percentiles separated by spaces".to_owned()
    }
}

/// OOM score adjustments for a master, for a replica, and for a child process that saves.
#[derive(Debug)]
pub(crate) struct OomAdjustmentsKind;

/// Accepts three adjustments, in the order master, replica, saving process.
pub(crate) const fn oom_adjustments() -> OomAdjustmentsKind {
    OomAdjustmentsKind
}

impl ValueKind for OomAdjustmentsKind {
    type Value = [i32; 3];

    fn parse(&self, words: &[String], _: Option<&[i32; 3]>) -> Result<[i32; 3], String> {
        let words = <[&str; 3]>::try_from(split_arguments(words)).map_err(|_| WRONG_COUNT_ERROR)?;
        let values = words.map(|word| word.parse().ok().filter(|value| (-2000..=2000).contains(value)));
        let [Some(master), Some(replica), Some(saving)] = values else {
            return Err("Invalid oom-score-adj-values, elements must be between -2000 and 2000.".to_owned());
        };
        Ok([master, replica, saving])
    }

    fn format(&self, value: &[i32; 3]) -> String {
        join_values(value)
    }

    fn config_lines(&self, value: &[i32; 3]) -> Vec<String> {
        single_line(self.format(value))
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "three numbers".to_owned()
    }
}

/// The address of the master that this server replicates (`replicaof`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterAddress {
    /// Host name or IP address of the master.
    pub host: String,
    /// TCP port of the master, 1 to 65535.
    pub port: u16,
}

/// An optional master address.
#[derive(Debug)]
pub(crate) struct OptionalMasterKind;

/// Accepts a host and a port, or nothing.
pub(crate) const fn optional_master() -> OptionalMasterKind {
    OptionalMasterKind
}

impl ValueKind for OptionalMasterKind {
    type Value = Option<MasterAddress>;

    fn parse(
        &self,
        words: &[String],
        _: Option<&Option<MasterAddress>>,
    ) -> Result<Option<MasterAddress>, String> {
        match split_arguments(words)[..] {
            [] => Ok(None),
            [no, one] if no.eq_ignore_ascii_case("no") && one.eq_ignore_ascii_case("one") => Ok(None),
            [host, port] => {
                let port = port.parse().map_err(|_| "Invalid primary port")?;
                Ok(Some(MasterAddress { host: host.into(), port }))
            }
            _ => Err(WRONG_COUNT_ERROR.to_owned()),
        }
    }

    fn format(&self, value: &Option<MasterAddress>) -> String {
        value.as_ref().map(|MasterAddress { host, port }| format!("{host} {port}")).unwrap_or_default()
    }

    fn config_lines(&self, value: &Option<MasterAddress>) -> Vec<String> {
        // Without a master, write no line, because `replicaof` without arguments would be invalid.
        value.iter().map(|MasterAddress { host, port }| format!("{host} {port}")).collect()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "host and port".to_owned()
    }
}

/// A condition for an automatic snapshot: save if the interval has passed and enough changes were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavePoint {
    /// Minimum time since the last snapshot.
    pub interval: Duration,
    /// Minimum number of changes since the last snapshot.
    pub changes: u64,
}

#[derive(Debug)]
pub(crate) struct SavePointsKind;

/// Accepts pairs of an interval in seconds and a number of changes.
pub(crate) const fn save_points() -> SavePointsKind {
    SavePointsKind
}

impl ValueKind for SavePointsKind {
    type Value = Arc<[SavePoint]>;

    fn parse(&self, words: &[String], _: Option<&Arc<[SavePoint]>>) -> Result<Arc<[SavePoint]>, String> {
        let words = split_arguments(words);
        let point = |pair: &[&str]| match (pair.first()?.parse::<i64>(), pair.get(1)?.parse::<i64>()) {
            (Ok(seconds @ 1..), Ok(changes @ 0..)) => Some(SavePoint {
                interval: Duration::from_secs(seconds.unsigned_abs()),
                changes: changes.unsigned_abs(),
            }),
            _ => None,
        };
        let points: Option<Arc<[SavePoint]>> = words.chunks(2).map(point).collect();
        points.ok_or_else(|| "Invalid save parameters".to_owned())
    }

    fn format(&self, value: &Arc<[SavePoint]>) -> String {
        join_values(value.iter().flat_map(|point| [point.interval.as_secs(), point.changes]))
    }

    fn config_lines(&self, value: &Arc<[SavePoint]>) -> Vec<String> {
        if value.is_empty() {
            return single_line(String::new());
        }
        value.iter().map(|point| format!("{} {}", point.interval.as_secs(), point.changes)).collect()
    }

    fn is_cumulative(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "pairs of seconds and number of changes".to_owned()
    }
}

/// Output buffer limits of one class of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputLimit {
    /// Hard limit in bytes, which disconnects at once; 0 means none.
    pub hard_limit: usize,
    /// Soft limit in bytes, which disconnects after [`OutputLimit::soft_duration`]; 0 means none.
    pub soft_limit: usize,
    /// Time for which a client may exceed the soft limit.
    pub soft_duration: Duration,
}

/// The output buffer limits of all client classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputLimits {
    /// Limits of ordinary clients.
    pub normal: OutputLimit,
    /// Limits of connections to replicas.
    pub replica: OutputLimit,
    /// Limits of Pub/Sub subscribers.
    pub pubsub: OutputLimit,
}

impl OutputLimits {
    fn limit_of_class(&mut self, class: &str) -> Option<&mut OutputLimit> {
        match class.to_ascii_lowercase().as_str() {
            "normal" => Some(&mut self.normal),
            "slave" | "replica" => Some(&mut self.replica),
            "pubsub" => Some(&mut self.pubsub),
            _ => None,
        }
    }

    fn format_limits(&self) -> [String; 3] {
        [("normal", self.normal), ("slave", self.replica), ("pubsub", self.pubsub)].map(|(class, limit)| {
            format!("{class} {} {} {}", limit.hard_limit, limit.soft_limit, limit.soft_duration.as_secs())
        })
    }
}

/// Output buffer limits for some or all client classes.
#[derive(Debug)]
pub(crate) struct OutputLimitsKind;

/// Accepts `class hard soft seconds`, once or more.
pub(crate) const fn output_limits() -> OutputLimitsKind {
    OutputLimitsKind
}

impl ValueKind for OutputLimitsKind {
    type Value = OutputLimits;

    fn parse(&self, words: &[String], previous: Option<&OutputLimits>) -> Result<OutputLimits, String> {
        let mut limits = previous.copied().unwrap_or_default();
        if words == [""] {
            return Ok(limits);
        }
        let words = split_arguments(words);
        if words.is_empty() || !words.len().is_multiple_of(4) {
            return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
        }
        for row in words.chunks(4) {
            let limit = limits
                .limit_of_class(row[0])
                .ok_or("Invalid client class specified in buffer limit configuration.")?;
            let size = |word| parse_memory(word).and_then(|bytes| usize::try_from(bytes).ok());
            let seconds = row[3].parse::<i64>().ok().and_then(|seconds| u64::try_from(seconds).ok());
            let (Some(hard), Some(soft), Some(seconds)) = (size(row[1]), size(row[2]), seconds) else {
                return Err(
                    "Error in hard, soft or soft_seconds setting in buffer limit configuration.".to_owned()
                );
            };
            *limit = OutputLimit {
                hard_limit: hard,
                soft_limit: soft,
                soft_duration: Duration::from_secs(seconds),
            };
        }
        Ok(limits)
    }

    fn format(&self, value: &OutputLimits) -> String {
        value.format_limits().join(" ")
    }

    fn config_lines(&self, value: &OutputLimits) -> Vec<String> {
        value.format_limits().into()
    }

    fn is_cumulative(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "`class hard soft seconds`, repeated for each class".to_owned()
    }
}
